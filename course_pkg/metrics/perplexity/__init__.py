"""Perplexity and the other units of a likelihood, of neural and n-gram language models.

>>> from course_pkg.metrics.perplexity import Likelihood
>>> Likelihood.of([-2.0] * 10).nll_per_token
2.0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
