"""Page: deployment/plan."""
