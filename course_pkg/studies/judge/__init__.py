"""Page: metrics/judge."""
