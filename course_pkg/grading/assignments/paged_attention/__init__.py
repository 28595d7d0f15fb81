"""Checks of the assignment `paged-attention`: tables, copy-on-write, attention, prefix hits."""
