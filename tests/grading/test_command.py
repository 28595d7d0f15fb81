"""Which stored records a run of `course grade` uses, and what it does if it can't write."""

from types import SimpleNamespace

import pytest

from course_pkg.grading.runs.batch import Batch
from course_pkg.grading.runs.writing import Graded, Writer

from .recorded import record


def test_a_submission_that_became_unreadable_is_graded_again(tmp_path):
    """Its own record says what is wrong with it; the submissions after it are graded."""

    def unreadable():
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no such letter")

    record = SimpleNamespace(state="graded", key="k")
    batch = SimpleNamespace(
        store=SimpleNamespace(load=lambda *_: record),
        assignment="lora-math", writer=SimpleNamespace(points={"ada"}), course=tmp_path,
    )  # fmt: skip
    (tmp_path / "autograded" / "ada" / "lora-math").mkdir(parents=True)
    submission = SimpleNamespace(student="ada", read=unreadable)
    assert Batch.known(batch, submission) is None


@pytest.mark.parametrize("what", ["store", "book"])
def test_a_full_disk_ends_the_run_and_keeps_the_earlier_score(what):
    """Any other error is a failure of the grader, for that submission alone."""
    written = []

    def failing(code):
        def fail(*_):
            raise OSError(code, "x")

        store = SimpleNamespace(load=lambda *_: None, forget=lambda *_: None, save=written.append)
        book = SimpleNamespace(write=lambda record, *_: written.append(record))
        setattr(*((store, "save", fail) if what == "store" else (book, "write", fail)))
        writer = Writer.__new__(Writer)
        writer.assignment, writer.book, writer.store = "lora-math", book, store
        writer.failed = lambda submission, reason: record("ada", reason=reason)
        writer.points, writer._students, writer._due = {}, set(), None
        return writer

    one = SimpleNamespace(student="ada", trusted=True, timestamp=None, layout="flat", person=None)
    with pytest.raises(OSError, match="x"):
        failing(28).write(one, Graded(record("ada")))
    assert written == [record("ada")] * (what == "store")  # no failure of 0 points
    assert "could not be written" in failing(5).write(one, Graded(record("ada"))).reason
