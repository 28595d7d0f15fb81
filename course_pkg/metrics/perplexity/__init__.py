"""Perplexity and the other units of a likelihood, of neural and n-gram language models.

>>> from course_pkg.metrics.perplexity import Likelihood
>>> Likelihood.of([-2.0] * 10).nll_per_token
2.0
"""

from importlib import import_module

_EXPORTS = {
    "course_pkg.metrics.perplexity.likelihood": "Likelihood count_units",
    "course_pkg.metrics.perplexity.ngram_lm": "END START UNKNOWN NGramModel",
    "course_pkg.metrics.perplexity.score": "PerplexityResult Window perplexity windows",
    "course_pkg.metrics.perplexity.token_scores": (
        "PASS_COST plan_batches target_log_probs token_log_probs"
    ),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str):
    """Import a public name when it is first used, so that importing the folder loads no torch."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
