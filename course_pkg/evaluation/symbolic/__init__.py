"""Symbolic and arithmetic reasoning: generated items with gold chains, and what scores them.

>>> from course_pkg.evaluation.symbolic import last_letter_item
>>> last_letter_item(["Amy", "Brown"]).answer
'yn'
"""

from course_pkg.lazy import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "course_pkg.evaluation.symbolic.chain_check": "Fault check_equations first_fault",
        "course_pkg.evaluation.symbolic.coin_flips": "coin_flip_item coin_flip_items",
        "course_pkg.evaluation.symbolic.concept_graph": (
            "Edge QuestionSet five_options question_sets"
        ),
        "course_pkg.evaluation.symbolic.last_letters": "last_letter_item last_letter_items",
        "course_pkg.evaluation.symbolic.reasoning_item": "ReasoningItem draw_distinct",
        "course_pkg.evaluation.symbolic.reasoning_scores": "reasoning_prompt score_reasoning",
        "course_pkg.evaluation.symbolic.word_problems": "word_problem_item word_problem_items",
    },
)
