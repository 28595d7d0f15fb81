"""Which stored records a run of `course grade` uses, and what it does if it can't write."""

import itertools
import threading
from types import SimpleNamespace

import pytest

from course_pkg.grading.classroom.execution.local_executor import ExecutorLost
from course_pkg.grading.classroom.runs.batch import Batch, Graded, Recorder, as_they_end
from tests.grading.classroom.recorded import record
from tests.waiting import wait_until


def test_a_submission_that_became_unreadable_is_graded_again(tmp_path):
    """Its own record says what is wrong with it; the submissions after it are graded."""

    def unreadable():
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no such letter")

    record = SimpleNamespace(state="graded", key="k")
    batch = SimpleNamespace(
        store=SimpleNamespace(load=lambda *_: record),
        recorder=SimpleNamespace(points={"ada"}),
        _assignment="lora-math",
        _course=tmp_path,
    )
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
        return Recorder(
            "lora-math",
            book,
            store,
            lambda submission, reason: record("ada", reason=reason),
            points={},
            students=set(),
            has_due_date=False,
        )

    one = SimpleNamespace(student="ada", trusted=True, timestamp=None, layout="flat", person=None)
    with pytest.raises(OSError, match="x"):
        failing(28).write(one, Graded(record("ada")))
    assert written == [record("ada")] * (what == "store")  # no failure of 0 points
    assert "could not be written" in failing(5).write(one, Graded(record("ada"))).reason


def test_a_run_holds_no_more_submissions_than_its_executor_has_room_for():
    """Of 200; and when nothing can be run any longer, it ends, and writes nothing for the rest."""
    now = []
    most = []
    written = []
    stopped = []

    class Executor:
        def room(self):
            return 3 if len(written) < 20 else 7

        def stop(self):
            stopped.append(True)

    def graded(submission):
        now.append(submission)
        most.append(len(now))
        wait_until(lambda: len(now) >= executor.room() or stopped)
        now.remove(submission)
        if submission == 150:
            raise ExecutorLost("the scheduler is gone")
        return submission

    executor = Executor()
    waiting = [(number, Numbered(number)) for number in range(200)]
    with pytest.raises(ExecutorLost):
        for _, submission, _ in as_they_end(executor, waiting, graded, lambda _: None):
            written.append(submission)
    assert max(most[:10]) == 3 and max(most) == 7 and stopped == [True]
    assert 140 < len(written) <= 157 and 150 not in written


def test_room_that_a_run_gets_is_used_before_a_submission_ends():
    """Workers of a cluster may join at any time."""
    together = threading.Barrier(3)
    asked = itertools.count()
    executor = SimpleNamespace(
        stop=lambda: None,
        room=lambda: 3 if next(asked) >= 2 else 1,  # after the first one was started
    )
    waiting = [(number, Numbered(number)) for number in range(3)]
    ended = as_they_end(executor, waiting, lambda _: together.wait(120), lambda _: None)
    assert sorted(number for number, _, _ in ended) == [0, 1, 2]


class Numbered(int):
    """A submission that is a number."""

    student = "ada"
