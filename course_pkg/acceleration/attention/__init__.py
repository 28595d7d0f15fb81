"""Attention: as the formula states it, in tiles, for one query, and what each of them costs."""
