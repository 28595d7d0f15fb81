"""Perplexity and the other units of a likelihood, of neural and n-gram language models.

>>> from course_pkg.metrics.perplexity import Likelihood
>>> Likelihood.of([-2.0] * 10).nll_per_token
2.0
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.metrics.perplexity.likelihood": "Likelihood count_units",
    "course_pkg.metrics.perplexity.ngram_lm": "END START UNKNOWN NGramModel",
    "course_pkg.metrics.perplexity.score": "PerplexityResult Window perplexity windows",
    "course_pkg.metrics.perplexity.token_scores": (
        "PASS_COST plan_batches target_log_probs token_log_probs"
    ),
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
