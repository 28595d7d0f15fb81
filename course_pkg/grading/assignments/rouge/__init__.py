"""Assignment `rouge`: ROUGE by hand and by code, longest common subsequences, skip-bigrams."""
