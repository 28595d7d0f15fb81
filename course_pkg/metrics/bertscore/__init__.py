"""BERTScore: tokens matched by the cosines of an encoder's vectors.

>>> from course_pkg.metrics.bertscore import bert_score
>>> round(bert_score(["a cat sat"], ["a cat sat"]).f1.item(), 4)
1.0
"""

from importlib import import_module

_EXPORTS = {
    "course_pkg.metrics.bertscore.matching": "IdfWeights TokenMatches idf_weights token_matches",
    "course_pkg.metrics.bertscore.score": "Baseline BertScores bert_score estimate_baseline",
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str):
    """Import a public name when it is first used, so that importing the folder loads no torch."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
