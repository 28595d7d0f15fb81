"""Perplexity and the other units of a likelihood, of neural and n-gram language models."""
