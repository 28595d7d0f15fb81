"""How a run of `course grade` ends: a code that says what to do next."""

from types import SimpleNamespace

import pytest

from course_pkg.grading.runs import command, grader
from course_pkg.grading.runs.batch import Batch
from course_pkg.grading.submissions.collect import SourceError


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (SourceError("nothing there"), 2, "error: nothing there"),
        (OSError(28, "No space left on device"), 4, "the grader failed: [Errno 28]"),
        (TypeError("a fault"), 4, "a fault of its own"),  # 1 would say that all have a score
        (KeyboardInterrupt(), 130, "goes on where this one stopped"),
    ],
)
def test_whatever_stops_a_run_has_its_code(tmp_path, monkeypatch, capsys, error, code, says):
    def failing(*_):
        raise error

    monkeypatch.setattr(grader, "grade", failing)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    options = command.options(tmp_path, 1, 60, 60, 1, (), False, False)
    assert command.run(tmp_path, "lora-math", options) == code
    assert says in capsys.readouterr().err


def test_a_hand_in_that_can_no_longer_be_read_is_looked_at_again(tmp_path):
    """What is wrong with it is for its own record; those after it are graded."""

    def unreadable():
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no such letter")

    record = SimpleNamespace(state="graded", key="k")
    batch = SimpleNamespace(
        store=SimpleNamespace(load=lambda *_: SimpleNamespace(record=record)),
        assignment="lora-math", graded_before={"ada"}, course=tmp_path,
    )  # fmt: skip
    (tmp_path / "autograded" / "ada" / "lora-math").mkdir(parents=True)
    hand_in = SimpleNamespace(student="ada", read=unreadable)
    assert Batch.known(batch, hand_in) is None
