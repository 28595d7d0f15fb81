"""ROUGE: n-grams, subsequences and skip-bigrams that a summary shares with its references."""
