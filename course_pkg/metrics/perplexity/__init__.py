"""Perplexity and the other units of a likelihood, of neural and n-gram language models."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
