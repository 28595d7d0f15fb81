"""Contamination: was the test in the training data? From the texts, and from the model alone.

>>> from course_pkg.studies.contamination import exposure
>>> exposure([-3.0, -1.0, -2.0, -4.0], inserted=1).bits
2.0
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.studies.contamination.canaries": "Exposure contains_guid exposure new_guid",
    "course_pkg.studies.contamination.exchangeability": (
        "OrderTest draw_orders order_test order_t_test"
    ),
    "course_pkg.studies.contamination.membership": "Roc min_k_score roc",
    "course_pkg.studies.contamination.overlap": "Overlap Span find_overlaps normalized_words",
    "course_pkg.studies.contamination.text_scores": (
        "code_log_probs order_log_probs text_log_probs"
    ),
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
