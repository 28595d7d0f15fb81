"""Weights in 4 bits: code books, blockwise scales, double quantization, and what they cost."""
