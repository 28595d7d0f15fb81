"""Page: evaluation/environments-and-tools."""
