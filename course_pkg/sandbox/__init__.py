"""Confining programs that nobody has read: `probe` says what this machine can do."""
