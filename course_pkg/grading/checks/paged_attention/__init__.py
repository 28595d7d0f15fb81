"""Checks of the assignment `paged-attention`: block tables, copy-on-write, attention, prefix hits."""
