"""Assignment `bleu`: BLEU by hand, then from n-gram counts to a corpus score with references."""
