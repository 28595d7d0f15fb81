"""A page to look through the samples of a run: one HTML file, with no script and no network.

Read samples before you believe a score: an answer can be wrong through no fault of the model's,
when a stop string, a rule of extraction or the key is.
"""

import math
from collections import Counter
from pathlib import Path

from course_pkg.common.files import write_atomically
from course_pkg.common.html_page import html_page
from course_pkg.evaluation.run_record import RunRecord
from course_pkg.evaluation.samples import Sample

FILE = "report.html"


def write_report(record: RunRecord, folder: Path) -> None:
    """Write the page into a run's folder, whole or not at all."""
    page = report(record).encode("utf-8", "replace")  # a server may send half a surrogate
    write_atomically(folder / FILE, page)


def report(record: RunRecord) -> str:
    """The page of a run, as HTML."""
    states = [state(sample, record.metric) for sample in record.samples]
    count = Counter(states)
    return html_page(
        "run_report.html",
        title=f"{record.task['name']}: {record.name}",
        record=record,
        about=_about(record),
        counts={"all": len(states)} | {kind: count[kind] for kind in ("right", "wrong", "failed")},
        samples=list(zip(record.samples, states, strict=True)),
        chosen=_chosen,
        prompt=_prompt,
        notes=_notes,
        digits=lambda number, width: f"{number:z.{width}f}",
        percent=lambda log_prob: f"{math.exp(log_prob):.2%}",
        repr=repr,
    )


def state(sample: Sample, metric: str) -> str:
    """ "right", "wrong" or "failed"; a score between 0 and 1 is right from 0.5 on."""
    if metric not in sample.scores:
        return "failed"
    return "right" if sample.scores[metric] >= 0.5 else "wrong"


def _about(record: RunRecord) -> dict[str, str]:
    clustered = "" if record.groups is None else f" in {record.groups} groups of related items"
    about = {
        "items": f"{len(record.samples)} of {record.task['items']}{clustered}",
        "model": ", ".join(f"{name} {value}" for name, value in record.model.items() if value),
        "task": f"hash {record.task['hash'][:16]}",
        "finished": record.finished,
        "versions": ", ".join(f"{name} {value}" for name, value in record.versions.items()),
    }
    if record.notes:
        about["to know"] = "; ".join(record.notes)
    return about


def _chosen(sample: Sample) -> str:
    if "options" in sample.answer:
        return sample.answer["options"][sample.answer["choice"]]["text"]
    extracted = sample.answer.get("extracted")
    return extracted["answer"] if extracted else ""


def _prompt(sample: Sample) -> str:
    if isinstance(sample.prompt, str):
        return sample.prompt
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in sample.prompt)


def _notes(sample: Sample, number: int) -> str:
    notes = []
    if number == sample.asked["answer"]:
        notes.append("right")
    if number == sample.answer["choice"]:
        notes.append("chosen")
    if sample.answer["options"][number]["merged"] is not None:
        notes.append("merged with the context")
    return ", ".join(notes)
