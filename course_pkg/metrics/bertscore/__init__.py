"""BERTScore: tokens matched by the cosines of an encoder's vectors.

>>> from course_pkg.metrics.bertscore import bert_score
>>> round(bert_score(["a cat sat"], ["a cat sat"]).f1.item(), 4)
1.0
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.metrics.bertscore.matching": "IdfWeights TokenMatches idf_weights token_matches",
    "course_pkg.metrics.bertscore.score": "Baseline BertScores bert_score estimate_baseline",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
