"""Checks of the assignment `compression`: distillation, pruning, and a block of Q4_0."""
