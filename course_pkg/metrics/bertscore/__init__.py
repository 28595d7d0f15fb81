"""BERTScore: tokens matched by their contextual vectors."""
