"""Checks of the assignment `evaluation-plan`: verdicts, sizes, facts, and comparisons."""
