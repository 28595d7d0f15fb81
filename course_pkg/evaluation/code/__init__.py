"""Code benchmarks: problems with tests, programs run in a sandbox, and pass@k.

>>> from course_pkg.evaluation.code import pass_at_k
>>> pass_at_k(samples=4, correct=3, k=2)
1.0
"""

from course_pkg.lazy import lazy_exports

_FOLDER = "course_pkg.evaluation.code"

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        f"{_FOLDER}.pass_estimators": "biased_pass_at_k pass_at_k pass_at_k_interval",
        f"{_FOLDER}.problems": "CodeProblem load_code_items load_humaneval",
        f"{_FOLDER}.program_runner": "ProgramLimits ProgramRunner",
        f"{_FOLDER}.program_text": "complete_program cut_at_stop extract_program few_shot_prompt",
        f"{_FOLDER}.verdicts": "ProgramResult Verdict count_verdicts",
    },
)
