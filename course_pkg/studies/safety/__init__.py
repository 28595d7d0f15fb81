"""Page: evaluation/safety."""
