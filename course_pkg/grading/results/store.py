"""Where records are kept: signed, one file for each student, in the course's `.grading`.

A record is written whole or not at all, and one whose signature does not fit counts as none. Its
key is its content's address: as long as the hand-in, the checks, the limits, the grader's code and
the secret are the same, there is nothing to grade again.

Chapter: appendix/for-instructors.
"""

import functools
import hashlib
import hmac
import json
import platform
import re
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..contract.texts import FailureRecord, PropertyRecord, QuestionRecord, one_line
from .keys import derived, folder, framed, write_atomically
from .records import Record, strict_json
from .states import State

MAX_RECORD = 16 * 1024 * 1024  # bytes of a record's file
LIBRARIES = ("ipykernel", "nbclient", "numpy", "torch", "transformers")
PACKAGE = Path(__file__).parents[2]
NOT_GRADING = ("grading/checks/", "cli.py", "doctor.py", "pins.py")
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,79}(?<!\.)")
_TAKEN = {"index", "grades"}  # names of files that lie beside those of the students


@functools.cache
def code_hash() -> str:
    """SHA-256 over the package's sources and the versions that a grade depends on.

    An assignment's checks are left out: they have a hash of their own. Takes some milliseconds,
    once.
    """
    parts = [f"{name} {version(name)}" for name in LIBRARIES]
    parts.append(f"python {platform.python_version()}")
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(NOT_GRADING):
            parts += [name, hashlib.sha256(path.read_bytes()).hexdigest()]
    return hashlib.sha256(framed(*parts)).hexdigest()


def content_key(**parts: object) -> str:
    """The address of a grading: SHA-256 over the names and the texts of what it depends on.

    >>> content_key(files="ab", checks="c") == content_key(files="a", checks="bc")
    False
    """
    named = [text for name in sorted(parts) for text in (name, str(parts[name]))]
    return hashlib.sha256(framed(*named)).hexdigest()


def file_stem(student: str) -> str:
    """The name of a student's files: the id where that is safe on any disk, else with its hash.

    >>> file_stem("ada@uni.edu"), file_stem("Ada")
    ('ada@uni.edu', 'Ada~99a563ab2f6e21e9')
    """
    if _PLAIN.fullmatch(student) and student not in _TAKEN:
        return student
    raw = student.encode("utf-8", "surrogatepass")  # a file's name may be no text at all
    readable = re.sub(r"[^A-Za-z0-9_@+-]", "_", student)[:40]
    return f"{readable}~{hashlib.sha256(raw).hexdigest()[:16]}"


@dataclass(frozen=True)
class Found:
    """A record, if there is one to believe; else, where one lies there, why not."""

    record: Record | None
    warning: str = ""


class Store:
    """The signed records of a course, in `.grading/records/<assignment>/`."""

    def __init__(self, course: Path, secret: bytes) -> None:
        self._folder, self._key = folder(course) / "records", derived(secret, "records")

    def save(self, record: Record) -> None:
        """Write a record in the place of the student's last."""
        fields = asdict(record)
        text = json.dumps({"signature": self._sign(fields), "record": fields}, allow_nan=False)
        path = self._path(record.assignment, record.student)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, text.encode())

    def load(self, assignment: str, student: str) -> Found:
        """The student's record; none, with a warning, where the file is not as it was written."""
        path = self._path(assignment, student)
        if not path.exists():
            return Found(None)
        try:
            record = self._read(path)
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = f"the record of {student!r} is not as it was written ({error}): it counts as none"
            return Found(None, one_line(why))
        if (record.assignment, record.student) != (assignment, student):
            return Found(None, one_line(f"{path} holds another's record: it counts as none"))
        return Found(record)

    def forget(self, assignment: str, student: str) -> None:
        """Remove a student's record: before the gradebook is written, so that none is stale."""
        self._path(assignment, student).unlink(missing_ok=True)

    def all(self, assignment: str) -> list[Found]:
        """What is kept of every student, sorted by id; what is not to be believed comes first."""
        found = []
        for path in sorted((self._folder / assignment).glob("[!.]*.json")):
            try:
                record = self._read(path)
                if path != self._path(assignment, record.student):
                    raise ValueError("it is another's")
                found.append(Found(record))
            except (OSError, ValueError, TypeError, KeyError) as error:
                why = f"{path} is not as it was written ({error}): it counts as none"
                found.append(Found(None, one_line(why)))
        return sorted(found, key=lambda f: f.record.student if f.record else "")

    def _path(self, assignment: str, student: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", assignment):
            raise ValueError(f"{assignment!r} is no assignment's name")
        return self._folder / assignment / f"{file_stem(student)}.json"

    def _sign(self, fields: dict[str, Any]) -> str:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def _read(self, path: Path) -> Record:
        with open(path, "rb") as file:
            text = file.read(MAX_RECORD + 1)
        if len(text) > MAX_RECORD:
            raise ValueError("the file is too large")
        outer = strict_json(text)
        if not isinstance(outer, dict) or set(outer) != {"record", "signature"}:
            raise ValueError("it is no record")
        if not hmac.compare_digest(str(outer["signature"]), self._sign(outer["record"])):
            raise ValueError("the signature does not fit")
        return _record(outer["record"])


def _record(fields: dict[str, Any]) -> Record:
    """A record from its JSON, whose signature has been found right."""
    questions = tuple(
        QuestionRecord(
            q["question"],
            tuple(
                PropertyRecord(**{**p, "failure": p["failure"] and FailureRecord(**p["failure"])})
                for p in q["properties"]
            ),
        )
        for q in fields["questions"]
    )
    fields = {**fields, "questions": questions, "remarks": tuple(fields["remarks"])}
    return Record(**{**fields, "state": State(fields["state"])})
