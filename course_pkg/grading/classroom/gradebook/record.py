"""The record of one graded submission: what is kept of it, in a signed file of its own.

A record is written whole or not at all. If its signature does not match, the student is reported,
not graded.
"""

import functools
import hashlib
import hmac
import json
import math
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from course_pkg.common.files import write_atomically
from course_pkg.grading.classroom.execution.grade_key import length_prefixed
from course_pkg.grading.classroom.execution.runner_output import State, strict_json
from course_pkg.grading.classroom.gradebook.keys import FOLDER, derived_key, grading_folder
from course_pkg.grading.classroom.submissions.names import valid_assignment
from course_pkg.grading.questions.display import one_line
from course_pkg.grading.questions.question_record import (
    FailureRecord,
    PropertyRecord,
    QuestionRecord,
)
from course_pkg.grading.questions.verdict import UNANSWERED

MAX_RECORD = 16 * 1024 * 1024  # bytes of a record's file
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,79}(?<!\.)")
_TAKEN = {"index", "grades"}  # other files in the same folder


@dataclass(frozen=True)
class Record:
    """Everything that is known about one graded submission.

    Attributes:
        reason: "" for State.GRADED, else one sentence.
        remarks: what else an instructor should know.
        start_s, run_s, write_s: seconds to start sandbox and kernel, to run the cells, and to write
            to the gradebook.
        peak_bytes, gpu_peak_bytes: the most memory in use, None if unknown.
        limits, sandbox: what enforced memory and processes, and what confined it.
        unprotected: what could be forged all the same, "" for nothing.
        files, key: `digest` of what was submitted, "" if unknown; `content_key`, hex.
        graded_at: ISO time, UTC.
        gpu: the name of the GPU that it had, "" for none.
        submitted: while it waits, the ISO time of the submission, for the late penalty; "" if
            unknown.
    """

    student: str
    assignment: str
    state: State
    reason: str
    questions: tuple[QuestionRecord, ...]
    remarks: tuple[str, ...] = ()
    start_s: float = 0.0
    run_s: float = 0.0
    write_s: float = 0.0
    peak_bytes: int | None = None
    limits: str = ""
    sandbox: str = ""
    unprotected: str = ""
    files: str = ""
    key: str = ""
    graded_at: str = ""
    gpu: str = ""
    gpu_peak_bytes: int | None = None
    submitted: str = ""

    @property
    def score(self) -> float:
        """The automatic points earned: a whole number wherever a checker judged."""
        total = math.fsum(question.earned for question in self.questions)
        return int(total) if total.is_integer() else total

    @property
    def is_unsafe(self) -> bool:
        return self.sandbox.startswith("NONE")

    @property
    def max_score(self) -> float:
        return math.fsum(question.points for question in self.questions)


def without_words(record: Record) -> Record:
    """The record, without what its lost properties say in the student's words; notes stay.

    This is what is kept of a whole class in memory: records without words share their questions.
    """
    return replace(record, questions=tuple(_without_words(q) for q in record.questions))


def with_words(record: Record, stored: Record | None) -> Record:
    """A record with the words of the stored one, if that is of the same grading."""
    if stored is None or stored.graded_at != record.graded_at:
        return record
    if without_words(stored).questions != without_words(record).questions:
        return record
    return replace(record, questions=stored.questions)


def _without_words(question: QuestionRecord) -> QuestionRecord:
    properties = []
    for p in question.properties:
        if p.failure is not None and p.failure.reason != UNANSWERED:
            p = replace(p, failure=FailureRecord("", note=p.failure.note))
        properties.append(p)
    return _shared(replace(question, properties=tuple(properties)))


@functools.lru_cache(maxsize=2**12)
def _shared(question: QuestionRecord) -> QuestionRecord:
    """The first of the questions that are equal to this one, so that equal ones share memory."""
    return question


def content_key(**parts: object) -> str:
    """The key of a grading: SHA-256 of the names and texts of all that it depends on."""
    named = [text for name in sorted(parts) for text in (name, str(parts[name]))]
    return hashlib.sha256(length_prefixed(*named)).hexdigest()


def file_stem(student: str) -> str:
    """The name of a student's files: the id if it is safe on every file system, else with a hash.

    Example:

        >>> file_stem("ada@uni.edu"), file_stem("Ada")
        ('ada@uni.edu', 'Ada~99a563ab2f6e21e9')
    """
    if _PLAIN.fullmatch(student) and student not in _TAKEN:
        return student
    raw = student.encode("utf-8", "surrogatepass")  # a file name need not be valid text
    readable = re.sub(r"[^A-Za-z0-9_@+-]", "_", student)[:40]
    return f"{readable}~{hashlib.sha256(raw).hexdigest()[:16]}"


class Store:
    """The signed records of a course, in `.grading/records/<assignment>/`."""

    def __init__(self, course: Path, secret: bytes) -> None:
        self._folder = grading_folder(course) / "records"
        self._key = derived_key(secret, "records")

    def save(self, record: Record) -> None:
        fields = asdict(record)
        text = json.dumps({"signature": self._sign(fields), "record": fields}, allow_nan=False)
        path = self.path(record.assignment, record.student)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, text, 0o600)

    def load(self, assignment: str, student: str) -> Record | None:
        """The student's record; None if there is none, or one of another version of the grader.

        If the file is not as the grader wrote it, the record says so: State.RECORD_CHANGED.
        """
        path = self.path(assignment, student)
        try:
            fields = self._verified(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            return _changed(assignment, student, path, str(error))
        if (fields.get("assignment"), fields.get("student")) != (assignment, student):
            return _changed(assignment, student, path, "it is the record of somebody else")
        try:
            return _record(fields)
        except (ValueError, TypeError, KeyError):  # signed by us, but with other fields than today
            return None

    def forget(self, assignment: str, student: str) -> None:
        """Remove a student's record, so that a crash while grading leaves none out of date."""
        self.path(assignment, student).unlink(missing_ok=True)

    def students(self, assignment: str) -> list[str]:
        """Everybody with a record, also with one that somebody else has changed."""
        names = []
        for path in sorted((self._folder / assignment).glob("*.json")):
            name = path.stem
            if _PLAIN.fullmatch(name) and name not in _TAKEN:
                names.append(name)  # only one id gives this name, so there is no need to read it
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):
                student = str(json.loads(path.read_bytes()[:MAX_RECORD])["record"]["student"])
                name = student if file_stem(student) == path.stem else name
            names.append(name)
        return names

    def assignments(self, only: str | None = None) -> list[str]:
        """The assignments that have records; at most `only`."""
        folders = sorted(path.name for path in self._folder.glob("*") if path.is_dir())
        return [name for name in folders if only in (None, name)]

    def path(self, assignment: str, student: str) -> Path:
        if not valid_assignment(assignment):
            raise ValueError(f"{assignment!r} is not the name of an assignment")
        return self._folder / assignment / f"{file_stem(student)}.json"

    def _sign(self, fields: Any) -> str:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def _verified(self, path: Path) -> dict[str, Any]:
        with open(path, "rb") as file:
            text = file.read(MAX_RECORD + 1)
        if len(text) > MAX_RECORD:
            raise ValueError("the file is too large")
        outer = strict_json(text)
        if not isinstance(outer, dict) or set(outer) != {"record", "signature"}:
            raise ValueError("it is not a record")
        fields = outer["record"]
        if not hmac.compare_digest(str(outer["signature"]).encode(), self._sign(fields).encode()):
            raise ValueError("the signature does not match")
        return fields


def _changed(assignment: str, student: str, path: Path, why: str) -> Record:
    reason = (
        f"the record of {student} was changed by somebody else ({why}): look at "
        f"{FOLDER}/records/{assignment}/{path.name}, or grade it again with --regrade"
    )
    return Record(student, assignment, State.RECORD_CHANGED, one_line(reason), ())


def _record(fields: dict[str, Any]) -> Record:
    questions = []
    for q in fields["questions"]:
        properties = tuple(map(_property, q["properties"]))
        follows = tuple(q.get("follows", ()))
        questions.append(QuestionRecord(**q | {"properties": properties, "follows": follows}))
    changed = {"questions": tuple(questions), "remarks": tuple(fields["remarks"])}
    return Record(**fields | changed | {"state": State(fields["state"])})


def _property(fields: dict[str, Any]) -> PropertyRecord:
    failure = fields["failure"]
    if failure is not None:
        failure = FailureRecord(**failure | {"explanations": tuple(failure["explanations"])})
    return PropertyRecord(**fields | {"failure": failure})
