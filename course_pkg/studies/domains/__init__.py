"""Page: evaluation/domains."""
