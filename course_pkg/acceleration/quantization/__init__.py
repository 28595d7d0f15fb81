"""Weights in 2 to 8 bits, and 8-bit activations: how they are chosen, stored and multiplied."""
