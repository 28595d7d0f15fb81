"""Page: evaluation/likelihood-and-generation."""
