"""Metrics of generated text: overlap, likelihood, embeddings, and judges."""
