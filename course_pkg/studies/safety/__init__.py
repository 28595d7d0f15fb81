"""Associations by pairs of sentences, rules broken by attacks, and the two errors of refusals.

>>> from course_pkg.studies.safety import load_contrasts
>>> load_contrasts("association")[0].words
('cats', 'dogs')
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.studies.safety.contrasts": (
        "Contrast SentencePair WORDINGS load_contrasts sentence_pairs"
    ),
    "course_pkg.studies.safety.pair_scores": (
        "PairScore SentenceScore score_pairs shared_positions"
    ),
    "course_pkg.studies.safety.masked_pairs": "score_masked_pairs",
    "course_pkg.studies.safety.stereotype": (
        "CrowsScore StereotypeShare crows_score direction_gap stereotype_share"
    ),
    "course_pkg.studies.safety.pronoun_schemas": (
        "PRONOUNS PronounSchema ScoredSchema load_schemas score_schemas"
    ),
    "course_pkg.studies.safety.pronoun_gap": "GenderGap gender_gap",
    "course_pkg.studies.safety.rule_attacks": "RuleAttack attack_rates load_attacks writes_word",
    "course_pkg.studies.safety.refusals": (
        "RefusalErrors UserRequest keyword_refuses load_requests refusal_errors wrong_refusals"
    ),
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
