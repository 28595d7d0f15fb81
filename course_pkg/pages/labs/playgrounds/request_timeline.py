"""Requests on one server: a policy, and a timeline."""

from course_pkg.pages.labs.playgrounds.markup import Safe, element, joined, paragraph, table
from course_pkg.pages.labs.playgrounds.playground import Field, Playground, WrongInput
from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.mlfq import MLFQ, SkipJoinMLFQ
from course_pkg.studies.scheduling.policies import (
    SRPT,
    ContinuousBatching,
    Policy,
    RunToCompletion,
    StaticBatching,
)
from course_pkg.studies.scheduling.simulation import Simulation, simulate
from course_pkg.studies.scheduling.workload import SimulatedRequest

MOST_REQUESTS = 8
MOST_TOKENS = 12
MOST_ARRIVAL = 60
COST = CostModel(prompt=1.0, sequences=1.0)  # a second for each token
POLICIES = {
    "one at a time": lambda batch: RunToCompletion(),
    "static batching": lambda batch: StaticBatching(batch),
    "continuous batching": lambda batch: ContinuousBatching(batch),
    "SRPT": lambda batch: SRPT(batch, COST),
    "MLFQ": lambda batch: MLFQ(batch, 1.0),
    "skip-join MLFQ": lambda batch: SkipJoinMLFQ(batch, 1.0, cost=COST),
}


def requests(lines: list[str]) -> list[SimulatedRequest]:
    """Requests from lines of three whole numbers: arrival, tokens of the prompt, of the answer."""
    if not 1 <= len(lines) <= MOST_REQUESTS:
        raise WrongInput(
            f"Requests: expected 1 to {MOST_REQUESTS} lines, but {len(lines)} were given"
        )
    coming = []
    for line in lines:
        parts = line.replace(",", " ").split()
        if len(parts) != 3 or not all(part.isdecimal() and len(part) < 4 for part in parts):
            raise WrongInput(
                "Requests: expected three whole numbers a line (arrival, tokens of the prompt, "
                f"tokens of the answer), but {line[:40]!r} was given"
            )
        arrival, prompt, output = map(int, parts)
        within = min(prompt, output) >= 1 and max(prompt, output) <= MOST_TOKENS
        if arrival > MOST_ARRIVAL or not within:
            raise WrongInput(
                f"Requests: arrivals go to {MOST_ARRIVAL} s, prompts and answers from 1 to "
                f"{MOST_TOKENS} tokens, but {line[:40]!r} was given"
            )
        coming.append(SimulatedRequest(arrival, prompt=prompt, output=output))
    return coming


def view(lines: list[str], policy: str, batch: int) -> str:
    """The timeline of each request, and when it is done."""
    coming = requests(lines)
    chosen: Policy = POLICIES[policy](batch)
    result = simulate(coming, chosen, COST, trace=True)
    rows = []
    for job in result.jobs:
        name = chr(ord("A") + job.index)
        rows.append((name, timeline(result, job.index), f"{job.first_token - job.arrival:g} s"))
        rows[-1] += (f"{job.finished - job.arrival:g} s",)
    mean = sum(job.finished - job.arrival for job in result.jobs) / len(rows)
    first = sum(job.first_token - job.arrival for job in result.jobs) / len(rows)
    said = f"Mean time to the first token: {first:.2f} s; to the last: {mean:.2f} s."
    end = max(job.finished for job in result.jobs)
    axis = element("span", element("span", "0 s"), element("span", f"{end:g} s"), class_="lab-axis")
    head = ("", axis, "first token after", "done after")
    legend = [mark("prompt", "reads its prompt"), mark("decode", "writes"), mark("wait", "waits")]
    return joined([paragraph(joined(legend, " ")), table(head, rows), paragraph(said)])


def mark(kind: str, text: str) -> Safe:
    """A sample of a kind of time, and what it is called."""
    sample = element("span", "", class_=f"lab-slot lab-slot-{kind}")
    return element("span", sample, f" {text}", class_="lab-legend")


def timeline(result: Simulation, index: int) -> Safe:
    """A row of parts as wide as they take long: waiting, reading the prompt, writing."""
    end = max(job.finished for job in result.jobs)
    job = result.jobs[index]
    parts = [(0.0, job.arrival, "none")]
    at = job.arrival
    read = 0
    for iteration in result.trace:
        tokens = dict(iteration.batch).get(index)
        if tokens is None:
            continue
        parts.append((at, iteration.start, "wait"))
        kind = "prompt" if read < job.prompt else "decode"
        read += tokens
        parts.append((iteration.start, iteration.end, kind))
        at = iteration.end
    parts.append((at, job.finished, "wait"))
    shown = [
        element(
            "span",
            "",
            class_=f"lab-slot lab-slot-{kind}",
            style=f"width:{100 * (stop - start) / end:.2f}%",
        )
        for start, stop, kind in parts
        if stop > start
    ]
    steps = [f"{kind} {start:g} to {stop:g} s" for start, stop, kind in parts[1:] if stop > start]
    return element("span", *shown, class_="lab-timeline", role="img", aria_label="; ".join(steps))


PLAYGROUND = Playground(
    "scheduler",
    "Requests on one server, a second for each token",
    (
        Field(
            "lines",
            f"At most {MOST_REQUESTS} requests, one a line: second of arrival, tokens of the "
            "prompt, of the answer",
            "lines",
            "0 4 3\n0 1 3\n1 2 1\n4 1 1",
        ),
        Field("policy", "Policy", "choice", "continuous batching", options=tuple(POLICIES)),
        Field("batch", "Largest batch", "integer", "1", low=1, high=8),
    ),
    view,
)
