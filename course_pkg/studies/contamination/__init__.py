"""Page: evaluation/contamination."""
