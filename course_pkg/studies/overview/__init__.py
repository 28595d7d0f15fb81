"""Page: metrics/overview."""
