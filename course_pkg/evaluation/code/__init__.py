"""Code benchmarks: problems with tests, programs run in a sandbox, and pass@k.

>>> from course_pkg.evaluation.code import pass_at_k
>>> pass_at_k(samples=4, correct=3, k=2)
1.0
"""

from course_pkg.lazy import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "course_pkg.evaluation.code.pass_estimators": (
            "biased_pass_at_k pass_at_k pass_at_k_interval"
        ),
        "course_pkg.evaluation.code.problems": "CodeProblem load_code_items load_humaneval",
        "course_pkg.evaluation.code.program_runner": "ProgramLimits ProgramRunner",
        "course_pkg.evaluation.code.program_text": (
            "complete_program cut_at_stop extract_program few_shot_prompt"
        ),
        "course_pkg.evaluation.code.verdicts": "ProgramResult Verdict count_verdicts",
    },
)
