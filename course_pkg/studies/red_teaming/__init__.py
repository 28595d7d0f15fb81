"""Page: evaluation/red-teaming."""
