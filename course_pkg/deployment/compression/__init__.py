"""Smaller models: distilled into a student, or with weights, heads and layers pruned."""
