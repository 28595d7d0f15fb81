"""Two runs compared item by item: the same items, with another model, adapter or prompt.

Items are matched by id, and both runs must have the same items; their prompts may differ. An item
that one of the runs did not score, because of a limit or a failure, is left out and counted. Each
run counts with the score that its own task reports. See `comparison` for the statistics.
Chapter: evaluation/likelihood-and-generation.
"""

from dataclasses import dataclass

from course_pkg.evaluation.comparison import PairedComparison, compare_runs
from course_pkg.evaluation.record import RunRecord, groups_of
from course_pkg.evaluation.run_errors import RunError


@dataclass(frozen=True)
class PairedRuns:
    """How the system's scores differ from the baseline's.

    left_out: items that only one of the runs scored. notes: what differs besides the model.
    """

    comparison: PairedComparison
    baseline_mean: float
    system_mean: float
    left_out: int
    notes: tuple[str, ...]


def compare_records(baseline: RunRecord, system: RunRecord) -> PairedRuns:
    """Compare two runs on the items that both have scored.

    Raises RunError if their items differ, or fewer than 5 independent items are left.
    """
    if baseline.task["items_hash"] != system.task["items_hash"]:
        raise RunError(
            f"the items of {baseline.task['name']!r} and {system.task['name']!r} differ: a paired "
            "comparison needs two runs on the same items"
        )
    first = _values(baseline)
    second = _values(system)
    both = [sample for sample in baseline.samples if sample.id in first and sample.id in second]
    if not both:
        raise RunError("the runs have scored no item in common: run both with the same --limit")
    before = [first[sample.id] for sample in both]
    after = [second[sample.id] for sample in both]
    try:
        comparison = compare_runs(before, after, groups_of(both))
    except ValueError as error:
        raise RunError(f"the runs can't be compared: {error}") from None
    notes = []
    if baseline.task["hash"] != system.task["hash"]:
        notes.append("the tasks differ in their prompt or scoring")
    if baseline.metric != system.metric:
        notes.append(f"the baseline's score is {baseline.metric}, the system's {system.metric}")
    if differ := [
        f"{name} {old} and {system.versions.get(name)}"
        for name, old in baseline.versions.items()
        if system.versions.get(name) != old
    ]:
        notes.append(f"other versions: {', '.join(differ)}")
    return PairedRuns(
        comparison,
        sum(before) / len(before),
        sum(after) / len(after),
        len(first.keys() ^ second.keys()),
        tuple(notes),
    )


def _values(record: RunRecord) -> dict[str, float]:
    """The reported score of each item that has it."""
    metric = record.metric
    return {
        sample.id: sample.scores[metric] for sample in record.samples if metric in sample.scores
    }
