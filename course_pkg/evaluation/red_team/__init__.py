"""Red teaming: a language model searches for inputs on which another model breaks a rule.

>>> from course_pkg.evaluation.red_team import NO_DIGITS
>>> NO_DIGITS.violation("I have two cats."), NO_DIGITS.violation("I have 2 cats.")
(0.0, 1.0)
"""

from course_pkg.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.evaluation.red_team.rules": "NO_DIGITS FormatRule",
    "course_pkg.evaluation.red_team.generated_cases": (
        "CASE_STOPS GeneratedCase distinct_cases question_of zero_shot_prompt"
    ),
    "course_pkg.evaluation.red_team.few_shot": "draw_examples draw_probabilities few_shot_prompt",
    "course_pkg.evaluation.red_team.diversity": (
        "SelfBleu distinct_ngrams distinct_share self_bleu"
    ),
    "course_pkg.evaluation.red_team.objective": (
        "LossParts a2c_loss exact_objective kl_loss next_token_kl red_team_loss tilted_distribution"
    ),
    "course_pkg.evaluation.red_team.slot_policy": "SlotPolicy fit_slot_policy",
    "course_pkg.evaluation.red_team.slot_training": "SlotRun train_slot_policy",
    "course_pkg.evaluation.red_team.language_model_policy": "CaseBatch LanguageModelPolicy",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
