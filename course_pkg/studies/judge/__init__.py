"""Language models as judges: G-Eval, error spans, and tests of a judge's bias.

>>> from course_pkg.studies.judge import JudgeTask
>>> JudgeTask("Rate an answer.", "Clarity", "1 is confusing, 3 is clear.", (1, 2, 3)).label
'Clarity (1-3):'
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.studies.judge.prompt": "JudgeTask build_prompt",
    "course_pkg.studies.judge.geval": (
        "Judge JudgeError JudgeScore Reading add_up ask g_eval generate_steps read_option"
    ),
    "course_pkg.studies.judge.local": "LocalJudge",
    "course_pkg.studies.judge.endpoint": "EndpointJudge",
    "course_pkg.studies.judge.bias": (
        "Change Pair PairVerdict PositionBias Spread length_bias pairwise_prompt "
        "position_bias prefer_first repeatability wording_spread"
    ),
    "course_pkg.studies.judge.error_spans": (
        "ErrorSpan ErrorSpanError Report check_locations find_error_spans parse_report "
        "report_prompt"
    ),
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
