"""Check a student's own notebook, as `course check` does: run it, and give the reports as text.

It runs in a fresh kernel, in its own folder, with the user's rights: it is their own code, so there
is no sandbox. Their file is only read. A cell that fails does not stop the others.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode

from course_pkg.common.errors import CourseError
from course_pkg.common.files import readable_size
from course_pkg.grading.assemble import Assembled, notebook_to_run
from course_pkg.grading.cell_client import CellClient
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.display import one_line
from course_pkg.grading.questions.question import Question
from course_pkg.grading.questions.question_record import points_text, program_points_text
from course_pkg.grading.questions.report import Score
from course_pkg.grading.questions.verdict import UNANSWERED
from course_pkg.grading.read_notebook import MAX_BYTES, Unreadable, read, read_release

ANSI = re.compile(r"\x1b\[[0-9;]*m")
SHOWN = 60  # characters of a cell's first line
PACKAGE = Path(__file__).resolve().parents[2]
OWN_CELLS = "put imports and other code of yours into cells of your own"
NOT_RESTORED = (
    "there is no exercises/{0}/{0}.ipynb here, so locked cells run as they are; the grader "
    "restores them"
)
SETUP = (
    "import course_pkg.grading.own_notebook as _own\n"
    "_own.show_scores_as_data(get_ipython())\n"
    "del _own"
)


class NotebookError(CourseError, RuntimeError):
    """There is no notebook to check, or it has no checks; the message says what to do."""


@dataclass(frozen=True)
class NotebookMessage:
    """What a run tells about one question, or about a cell that failed, whose question is ""."""

    text: str
    question: str = ""
    earned: int = 0


def own_notebook(course: Path, assignment: str) -> Path:
    """Where `course start` puts a student's copy. Raises NotebookError if there is none."""
    registry.folder(assignment)
    path = course / "work" / assignment / f"{assignment}.ipynb"
    if not path.is_file():
        raise NotebookError(
            f"there is no {path.relative_to(course)}: run `course start {assignment}` to get your "
            f"copy, or name your notebook: `course check {assignment} NOTEBOOK`"
        )
    return path


def read_notebook(path: Path, assignment: str) -> Assembled:
    """What is run of a notebook. Raises NotebookError unless it can be read and checks that."""
    if not path.is_file():
        raise NotebookError(f"there is no notebook {path}")
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    released = released_notebook(path, assignment)
    questions = registry.load(assignment).questions
    try:
        submitted = read(data)
        checks = any(_questions(cell, assignment, questions) for cell in submitted["cells"])
        if not checks:
            raise NotebookError(
                f'{path} has no check of {assignment}; expected cells with check("{assignment}/…", '
                "…)"
            )
        if released is None:
            return Assembled(submitted, (NOT_RESTORED.format(assignment),))
        return notebook_to_run(data, released, assignment)
    except Unreadable as error:
        raise NotebookError(
            f"{path} is not a readable notebook ({error!s:.200}): restore a copy of it, or "
            f"move it away and get a new one with `course start {assignment}`"
        ) from None


def released_notebook(near: Path, assignment: str) -> dict[str, Any] | None:
    """The released notebook in this folder, in one above a path, or in this package."""
    for folder in (Path.cwd(), *near.resolve().parents, PACKAGE):
        path = folder / "exercises" / assignment / f"{assignment}.ipynb"
        if path.is_file():
            return read_release(path.read_bytes())
    return None


def check_notebook(
    path: Path, assignment: str, cell_s: float, output_bytes: int, say: Callable[[str], None]
) -> bool:
    """Say what each question of a notebook earns, then the sum; whether every point is earned.

    Args:
        cell_s: seconds after which a cell is interrupted, unless the assignment asks for more.
        output_bytes: that all cells may put out.
        say: called with each text.

    Raises:
        UnknownQuestion: there is no such assignment.
        NotebookError: the notebook can't be read, or checks nothing of the assignment.
    """
    assembled = read_notebook(path, assignment)
    for remark in assembled.remarks:
        advice = f"; {OWN_CELLS}" if "locked cell" in remark else ""
        say(f"note: {remark}{advice}\n")
    notebook = nbformat.from_dict(assembled.notebook)
    earned = {}
    for message in messages(notebook, path.parent, assignment, cell_s, output_bytes):
        say(f"{message.text}\n")
        if message.question:
            earned[message.question] = message.earned
    possible = sum(q.points for q in registry.load(assignment).questions.values())
    points = sum(earned.values())
    say(f"{points} of {program_points_text(possible, written_points(notebook))}")
    return points == possible


def messages(
    notebook: NotebookNode, folder: Path, assignment: str, cell_s: float, output_bytes: int
) -> Iterator[NotebookMessage]:
    """Run the notebook in `folder`; what each question earns, as soon as its cell has run."""
    asked = registry.load(assignment)
    missing = dict(asked.questions)
    notebook = nbformat.from_dict(notebook)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    client = CellClient(
        notebook,
        output_bytes,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        timeout=int(max(cell_s, asked.cell_s)),
        interrupt_on_timeout=True,
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    number = 0  # of the code cell, as In [number] after a restart; the setup is 0
    reason = "no cell checks it"
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code" or not cell.source.strip():
                continue
            name = _name(cell, number)
            try:
                client.execute_cell(cell, index)
            except DeadKernelError:
                reason = f"the kernel died in {name}, and later cells were not run"
                yield NotebookMessage(f"{reason}.")
                break
            limit = "put out far too much" if client.flooded else "took too long"
            for message in _of_cell(cell, name, assignment, asked.questions, limit):
                missing.pop(message.question, None)
                yield message
            errors = [output.get("ename") for output in cell.outputs]
            if client.flooded and "KeyboardInterrupt" not in errors:
                yield NotebookMessage(f"{name} {limit} and was interrupted.")
            if client.ended:
                reason = f"{name} ended the kernel, and later cells were not run"
                yield NotebookMessage(f"{reason}.")
                break
            number += 1
    if client.over:
        limit = readable_size(output_bytes)
        yield NotebookMessage(f"note: the cells put out more than {limit}; the rest was dropped.")
    for question in missing.values():
        yield _nothing(assignment, question, reason)


def written_points(notebook: Mapping[str, Any]) -> float:
    """The points of a notebook's cells that a person marks."""
    marks = [cell["metadata"].get("nbgrader", {}) for cell in notebook["cells"]]
    return sum(
        mark.get("points") or 0
        for mark in marks
        if mark.get("task") or (mark.get("grade") and mark.get("solution"))
    )


def show_scores_as_data(shell: Any) -> None:
    """In the kernel of such a run: the text of a `Score` is JSON that `messages` reads."""
    plain = shell.display_formatter.formatters["text/plain"]
    plain.for_type(Score, lambda score, printer, cycle: printer.text(_as_data(score)))


def _as_data(score: Score) -> str:
    failures = score.verdict.failures.values()
    answered = not all(failure and failure.reason == UNANSWERED for failure in failures)
    data = {"id": score.question_id, "earned": int(score), "answered": answered}
    return json.dumps({**data, "report": score.report})


def _of_cell(
    cell: NotebookNode, name: str, assignment: str, questions: dict[str, Question], limit: str
) -> Iterator[NotebookMessage]:
    """What a cell that was run says: its scores, and the error that ended it."""
    scored = set()
    for output in cell.outputs:
        score = _score(output)
        owner, _, question = score.get("id", "").partition("/")
        if owner == assignment and question in questions:
            scored.add(question)
            text = score["report"]
            if not score["answered"]:
                text = _unearned(assignment, questions[question], UNANSWERED)
            yield NotebookMessage(text, question, score["earned"])
    for output in cell.outputs:
        if output.output_type != "error":
            continue
        error = f"{name} raised {_error(output, limit)}"
        asked = [q for q in _questions(cell, assignment, questions) if q not in scored]
        yield from (_nothing(assignment, questions[question], error) for question in asked)
        if not asked and output.ename != "NotImplementedError":  # what an unanswered cell raises
            yield NotebookMessage(f"{error}.")


def _questions(
    cell: Mapping[str, Any], assignment: str, questions: dict[str, Question]
) -> list[str]:
    source = cell["source"] if cell["cell_type"] == "code" else ""
    named = re.findall(rf"""check\(\s*["']{re.escape(assignment)}/([^"']+)["']""", source)
    return [name for name in named if name in questions]


def _score(output: NotebookNode) -> dict[str, Any]:
    """What `show_scores_as_data` wrote into an output; {} if it did not."""
    try:
        data = json.loads(output.get("data", {}).get("text/plain", ""))
    except ValueError:
        return {}
    return data if isinstance(data, dict) and "report" in data else {}


def _nothing(assignment: str, question: Question, reason: str) -> NotebookMessage:
    return NotebookMessage(_unearned(assignment, question, reason), question.name)


def _unearned(assignment: str, question: Question, reason: str) -> str:
    return f"{assignment}/{question.name}: 0 of {points_text(question.points)}\n  {reason}"


def _name(cell: NotebookNode, number: int) -> str:
    """A code cell, as its author can find it: "code cell 1 (`import math`)"."""
    first = cell.source.strip().splitlines()[0]
    return f"code cell {number} (`{one_line(first, SHOWN)}`)"


def _error(output: NotebookNode, limit: str) -> str:
    if output.ename == "KeyboardInterrupt":
        return f"KeyboardInterrupt: it {limit} and was interrupted"
    value = one_line(ANSI.sub("", output.evalue), 300)
    return f"{output.ename}: {value}" if value else output.ename
