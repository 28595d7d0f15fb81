"""Code benchmarks: problems with tests, programs run in a sandbox, and pass@k.

>>> from course_pkg.studies.code_benchmarks import pass_at_k
>>> pass_at_k(samples=4, correct=3, k=2)
1.0
"""

from course_pkg.common.lazy import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "course_pkg.studies.code_benchmarks.pass_estimators": (
            "biased_pass_at_k pass_at_k pass_at_k_interval"
        ),
        "course_pkg.studies.code_benchmarks.problems": "CodeProblem load_code_items load_humaneval",
        "course_pkg.studies.code_benchmarks.program_runner": "ProgramLimits ProgramRunner",
        "course_pkg.studies.code_benchmarks.program_text": (
            "complete_program cut_at_stop extract_program few_shot_prompt"
        ),
        "course_pkg.studies.code_benchmarks.verdicts": "ProgramResult Verdict count_verdicts",
    },
)
