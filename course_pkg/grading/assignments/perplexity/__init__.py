"""Assignment `perplexity`: from logits to the perplexity of texts, in batches and in windows."""
