"""Page: evaluation/evaluation-plan."""
