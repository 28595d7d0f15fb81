"""Which stored records a run of `course grade` uses."""

from types import SimpleNamespace

from course_pkg.grading.runs.batch import Batch


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
