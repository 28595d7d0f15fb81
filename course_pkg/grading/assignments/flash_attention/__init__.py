"""Checks of the assignment `flash-attention`: softmax online, tiles, bytes, backward, KV cache."""
