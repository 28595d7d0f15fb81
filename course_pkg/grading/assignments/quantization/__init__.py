"""Checks of the assignment `quantization`: NF4, blocks, bits and bytes, a 4-bit linear layer."""
