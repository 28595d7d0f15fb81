"""Checks of the assignment `flash-attention`: online softmax, tiles, bytes, backward, a KV cache."""
