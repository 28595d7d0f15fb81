"""Checks of the assignment `concepts`: counterexamples to five statements that sound right."""
