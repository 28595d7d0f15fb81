"""Page: evaluation/systems."""
