"""`lora-script`: what an adapter must reach, on tickets drawn after the submission.

The bars are on the loss per answer token in nats. An answer written without reading the prompt
costs at least 1.2, because names, cities and numbers are drawn independently; the base alone costs
2.5. tests/exercises/test_lora_script_training.py measures how far the notebook's script is below
the bars, and adapters of other trainings above them.

Chapter: exercises.
"""

from collections.abc import Callable
from functools import wraps
from random import Random
from typing import Any

from torch import Tensor

from course_pkg.datasets import draw_tickets, ticket_file

from .adapter_files import Rejected, read_adapter, read_report
from .measuring import Measured, measure, read_records

FRESH = 12  # tickets for one property
FORMAT_BAR, TASK_BAR, EXACT_BAR = 0.9, 0.3, 0.25
LOSS_TOLERANCE, EXACT_TOLERANCE = 0.03, 0.05  # another processor, or a GPU in 16 bits
SEEN_ABOVE = "the adapter was rejected: see above"
Records = list[tuple[str, str]]
Weights = dict[str, Tensor]


def adapter_format(rng: Random, size: int) -> dict[str, Records]:
    """Fresh tickets."""
    return {"records": [(r["prompt"], r["answer"]) for r in draw_tickets(FRESH, rng)]}


adapter_task = adapter_report = adapter_format


def adapter_expected(inputs: dict[str, Records]) -> Records:
    """The tickets themselves, which carry their right answers."""
    return inputs["records"]


def _judged(
    rejected: str = "",
) -> Callable[
    [Callable[[Records, Weights, Any], str | None]], Callable[[Records, Any], str | None]
]:
    """A comparator from one of an adapter's weights, which are read once.

    rejected: what is said of an adapter that is not accepted; "" means the reason.
    """

    def decorate(compare: Callable[[Records, Weights, Any], str | None]) -> Any:
        @wraps(compare)
        def judged(records: Records, files: Any) -> str | None:
            try:
                weights = read_adapter(files)
            except Rejected as error:
                return rejected or str(error)
            return compare(records, weights, files)

        return judged

    return decorate


@_judged()
def learned_format(records: Records, weights: Weights, files: Any) -> str | None:
    """A comparator: the loss is below what any answer costs that ignores the prompt."""
    loss = measure(weights, records).loss
    if loss <= FORMAT_BAR:
        return None
    base = measure(None, records).loss
    return (
        f"the loss on {len(records)} fresh tickets is {loss:.2f}; expected at most {FORMAT_BAR} "
        f"(without an adapter it is {base:.2f}, and about 1.2 if the prompt is ignored)"
    )


@_judged(SEEN_ABOVE)
def learned_task(records: Records, weights: Weights, files: Any) -> str | None:
    """A comparator: the loss is small, and many answers are right to the last token."""
    found = measure(weights, records)
    if found.loss <= TASK_BAR and found.exact >= EXACT_BAR:
        return None
    return (
        f"on {len(records)} fresh tickets the loss is {found.loss:.2f}, expected at most "
        f"{TASK_BAR}, and {found.exact:.0%} of the answers are right, expected {EXACT_BAR:.0%}"
    )


@_judged(SEEN_ABOVE)
def matching_report(records: Records, weights: Weights, files: Any) -> str | None:
    """A comparator: the report has the loss and the exact answers on the course's held-out file."""
    try:
        report = read_report(files)
    except Rejected as error:
        return str(error)
    held_out, _ = read_records(ticket_file("held-out"))
    found: Measured = measure(weights, held_out)
    if found.loss > FORMAT_BAR:
        return f"no report counts for an adapter with a held-out loss of {found.loss:.2f}"
    for name, value, tolerance in (
        ("held_out_loss", found.loss, LOSS_TOLERANCE),
        ("exact_match", found.exact, EXACT_TOLERANCE),
    ):
        if not abs(report[name] - value) <= tolerance:
            return f"{name} is {report[name]:.4g} in your report; this adapter has {value:.4g}"
    return None
