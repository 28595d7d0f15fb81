"""The exit codes of `course grade`."""

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
        (
            TypeError("a bug"),
            4,
            "the grader failed because of a bug in it",
        ),  # 1 would mean that all have a score
        (KeyboardInterrupt(), 130, "run the same command again to continue"),
    ],
)
def test_every_error_has_its_exit_code(tmp_path, monkeypatch, capsys, error, code, says):
    def failing(*_):
        raise error

    monkeypatch.setattr(grader, "grade", failing)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    options = command.options(tmp_path, 1, 60, 60, 1, (), False, False)
    assert command.run(tmp_path, "lora-math", options) == code
    assert says in capsys.readouterr().err


def test_a_submission_that_became_unreadable_is_graded_again(tmp_path):
    """Its own record says what is wrong with it; the submissions after it are graded."""

    def unreadable():
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no such letter")

    record = SimpleNamespace(state="graded", key="k")
    batch = SimpleNamespace(
        store=SimpleNamespace(load=lambda *_: record),
        assignment="lora-math", graded_before={"ada"}, course=tmp_path,
    )  # fmt: skip
    (tmp_path / "autograded" / "ada" / "lora-math").mkdir(parents=True)
    submission = SimpleNamespace(student="ada", read=unreadable)
    assert Batch.known(batch, submission) is None
