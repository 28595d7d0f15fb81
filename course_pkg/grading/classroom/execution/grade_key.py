"""What can change a grade, as hashes: as long as they stay the same, nothing is graded again.

`judging_hash` covers what all assignments share: how a submission is assembled and run, what the
sandbox allows, how values are compared. `checks_hash` covers one assignment. Both are of the
structure of code, so words in comments and messages change no grade.
"""

import functools
import hashlib
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from course_pkg.common.fingerprints.reach import LOADED, WHOLE, Name, Sources
from course_pkg.common.fingerprints.structure import structure
from course_pkg.grading import assignments as checks
from course_pkg.grading.questions.question import Assignment

ROOT = Path(__file__).resolve().parents[4]
LIBRARIES = ("ipykernel", "nbclient", "numpy", "torch", "transformers")
# What runs in the sandboxes is reached from the first, which names it for the fork servers.
JUDGING: tuple[Name, ...] = (
    ("course_pkg.grading.classroom.execution.local_executor", WHOLE),
    ("course_pkg.grading.classroom.runs.scoring", WHOLE),
    ("course_pkg.grading.assemble", WHOLE),
)
WORDS = ("says", "hint", "because")  # keys of `questions.toml` that people read


@functools.cache
def judging_hash() -> str:
    """`current_judging_hash` as it was when this process first asked for it."""
    return current_judging_hash()


def current_judging_hash(root: Path = ROOT) -> str:
    """SHA-256 of what judges every assignment, and of the libraries' versions.

    Without the local labels of versions: a machine with the CUDA build of torch continues what one
    with the CPU build began.
    """
    sources = Sources(root)
    hashes = sources.hashes(sources.reach(*JUDGING))
    versions = [f"{name} {version(name).partition('+')[0]}" for name in LIBRARIES]
    return _digest(*versions, f"python {platform.python_version()}", *_texts(hashes))


def checks_hash(assignment: Assignment, files: Mapping[str, bytes], root: Path = ROOT) -> str:
    """SHA-256 of an assignment's questions, without their words, and of the code behind them.

    Args:
        files: the contents of the files of its checks, by relative path, wherever they are.
    """
    sources = Sources(root)
    package = f"{checks.__name__}.{assignment.name.replace('-', '_')}"
    folder = root.joinpath(*package.split("."))
    roots = [("course_pkg.grading.assignments", LOADED)]
    for name in sorted(files):
        path = folder / name
        if path.suffix == ".py":
            code = files[name].decode("utf-8", "replace")
            roots.append(sources.parsed(code, f"{package}.{path.stem}", path))
    answers = [assignment.setup]
    for question in assignment.questions.values():
        answers += [question.setup, question.answer]
    roots.append(sources.parsed("\n".join(answers), f"{package}.questions", folder / "questions"))
    hashes = sources.hashes(sources.reach(*roots))
    return _digest(repr(_without_words(asdict(assignment))), *_texts(hashes))


def notebook_hash(notebook: Any) -> str:
    """SHA-256 of what runs in a released notebook, and of what is graded: no texts, no comments."""
    parts = []
    for cell in notebook.cells:
        marks = dict(cell.metadata.get("nbgrader", {}))
        marks.pop("checksum", None)  # of the text, comments included
        if cell.cell_type == "code":
            parts.append(code_structure(cell.source))
        parts.append(repr(sorted(marks.items())))
    return _digest(*parts)


def code_structure(source: str) -> str:
    """The structure of a cell's code."""
    try:
        return structure(source)
    except SyntaxError:  # IPython's own lines, or an empty answer
        return source


def _without_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_words(item) for key, item in value.items() if key not in WORDS}
    if isinstance(value, list | tuple):
        return [_without_words(item) for item in value]
    return value


def _texts(hashes: Mapping[str, str]) -> list[str]:
    return [text for pair in hashes.items() for text in pair]


def _digest(*parts: str) -> str:
    return hashlib.sha256(length_prefixed(*parts)).hexdigest()


def length_prefixed(*parts: str) -> bytes:
    """The parts joined, each after its length, so that different parts give different bytes."""
    return b"".join(len(raw).to_bytes(8, "big") + raw for raw in (p.encode() for p in parts))
