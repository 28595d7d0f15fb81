"""Suites of tasks such as GLUE and SuperGLUE: items, labels as words, metrics, averages, rankings.

>>> from course_pkg.studies.benchmarks import GLUE
>>> [task.name for task in GLUE][:3]
['CoLA', 'SST-2', 'MRPC']
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.studies.benchmarks.benchmark_tasks": ("GLUE SUPERGLUE BenchmarkTask suite_average"),
    "course_pkg.studies.benchmarks.suite_items": (
        "SuiteItem SuitePrompt SuiteShape load_shape shape_names"
    ),
    "course_pkg.studies.benchmarks.label_scores": "LabelScores score_labels",
    "course_pkg.studies.benchmarks.task_metrics": (
        "accuracy binary_f1 macro_f1 matthews_correlation metric_statistics pearson spearman"
    ),
    "course_pkg.studies.benchmarks.wrong_keys": (
        "PairOfScores accuracy_with_wrong_keys pair_with_wrong_keys"
    ),
    "course_pkg.studies.benchmarks.leaderboard": (
        "RankUncertainty bootstrap_ranks expected_maximum mean_win_rate selection_bias "
        "simulate_leaderboard"
    ),
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
