"""Red teaming: a language model searches for inputs on which another model breaks a rule.

>>> from course_pkg.studies.red_teaming import NO_DIGITS
>>> NO_DIGITS.violation("I have two cats."), NO_DIGITS.violation("I have 2 cats.")
(0.0, 1.0)
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.studies.red_teaming.rules": "NO_DIGITS FormatRule",
    "course_pkg.studies.red_teaming.generated_cases": (
        "CASE_STOPS GeneratedCase distinct_cases question_of zero_shot_prompt"
    ),
    "course_pkg.studies.red_teaming.few_shot": "draw_examples draw_probabilities few_shot_prompt",
    "course_pkg.studies.red_teaming.diversity": (
        "SelfBleu distinct_ngrams distinct_share self_bleu"
    ),
    "course_pkg.studies.red_teaming.objective": (
        "LossParts a2c_loss exact_objective kl_loss next_token_kl red_team_loss tilted_distribution"
    ),
    "course_pkg.studies.red_teaming.slot_policy": "SlotPolicy fit_slot_policy",
    "course_pkg.studies.red_teaming.slot_training": "SlotRun train_slot_policy",
    "course_pkg.studies.red_teaming.language_model_policy": "CaseBatch LanguageModelPolicy",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
