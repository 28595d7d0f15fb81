"""Faster attention, quantized weights, several processes."""
