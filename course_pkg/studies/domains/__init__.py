"""Symbolic and arithmetic reasoning: generated items with gold chains, and what scores them.

>>> from course_pkg.studies.domains import last_letter_item
>>> last_letter_item(["Amy", "Brown"]).answer
'yn'
"""

from course_pkg.common.lazy import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "course_pkg.studies.domains.chain_check": "Fault check_equations first_fault",
        "course_pkg.studies.domains.coin_flips": "coin_flip_item coin_flip_items",
        "course_pkg.studies.domains.concept_graph": ("Edge QuestionSet five_options question_sets"),
        "course_pkg.studies.domains.last_letters": "last_letter_item last_letter_items",
        "course_pkg.studies.domains.reasoning_item": "ReasoningItem draw_distinct",
        "course_pkg.studies.domains.reasoning_scores": "reasoning_prompt score_reasoning",
        "course_pkg.studies.domains.word_problems": "word_problem_item word_problem_items",
    },
)
