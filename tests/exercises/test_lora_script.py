"""`lora-script`: what an adapter's numbers earn, and what a report must have.

The files have random numbers here. What the notebook's own script writes is in
test_lora_script_training.py, and files that are no adapter are in test_lora_script_files.py.
"""

from random import Random

import pytest

from course_pkg.grading.assignments.lora_script import cases as quality
from course_pkg.grading.assignments.lora_script import student
from course_pkg.grading.assignments.lora_script.cases import Measured, measure
from course_pkg.grading.assignments.lora_script.submitted_adapter import read_adapter
from course_pkg.grading.questions.grading_session import GradingSession
from tests.exercises.lora_script_run import plain_files, reported

FILES = reported(held_out_loss=0.1, exact_match=0.8)(plain_files())


def measuring(monkeypatch, loss, exact):
    monkeypatch.setattr(quality, "measure", lambda *_: Measured(loss, exact))


def test_an_adapter_at_the_bars_earns_and_one_beyond_does_not(monkeypatch):
    measuring(monkeypatch, quality.FORMAT_BAR, 0.0)
    assert quality.learned_format([], FILES) is None
    measuring(monkeypatch, quality.TASK_BAR, quality.EXACT_BAR)
    assert quality.learned_task([], FILES) is None
    for loss, exact in ((quality.TASK_BAR + 0.01, 1.0), (0.0, quality.EXACT_BAR - 0.01)):
        measuring(monkeypatch, loss, exact)
        assert f"the loss is {loss:.2f}" in quality.learned_task([], FILES)
    measuring(monkeypatch, quality.FORMAT_BAR + 0.01, 1.0)
    assert "without an adapter it is 0.91" in quality.learned_format([], FILES)


def test_a_report_has_the_loss_and_the_exact_answers_of_its_adapter(monkeypatch):
    measuring(
        monkeypatch, 0.1 + quality.LOSS_TOLERANCE - 1e-6, 0.8 + quality.EXACT_TOLERANCE - 1e-6
    )
    assert quality.matching_report([], FILES) is None
    measuring(monkeypatch, 0.1, 0.8)
    for name in ("held_out_loss", "exact_match"):
        reason = quality.matching_report([], reported(**{name: 0.5})(FILES))
        assert reason.startswith(f"{name} is 0.5 in your report; this adapter has 0.")
    measuring(monkeypatch, quality.FORMAT_BAR + 0.01, 0.8)
    assert "no report counts" in quality.matching_report([], FILES)


@pytest.mark.slow
@pytest.mark.model
def test_random_numbers_earn_nothing_and_measuring_leaves_the_base_as_it_was():
    records = quality.adapter_format(Random(3), 0)["records"][:2]
    before = measure(None, records)
    assert measure(read_adapter(FILES), records).loss > before.loss > 2
    assert measure(None, records) == before
    assert f"without an adapter it is {before.loss:.2f}" in quality.learned_format(records, FILES)
    assert "0% of the answers" in quality.learned_task(records, FILES)


def test_a_folder_may_be_as_large_as_the_question_says():
    assert GradingSession("lora-script").questions["adapter"].artifact == student.FOLDER_BYTES
