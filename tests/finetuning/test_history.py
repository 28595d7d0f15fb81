"""The record of a run: its best evaluation, its plot and its JSON."""

import math

import matplotlib as mpl
import pytest

from course_pkg.finetuning.history import Evaluation, History, StepRecord
from tests.tables import each_row

mpl.use("Agg")
HISTORY = History(
    [StepRecord(step, 3.0 / step, 1e-3, 0.5, 100, 0.25) for step in (1, 2, 3)],
    [Evaluation(2, 1.7), Evaluation(3, 1.2)],
)


@each_row(
    ("values", "best", "since"),
    [
        ([], None, 0),
        ([5.0], 0, 0),
        ([5.0, 5.0], 0, 1),  # equal is not lower
        ([5.0, 4.9, 4.8], 2, 0),
        ([math.nan, 2.0, 1.0, 1.0], 2, 1),  # the first of the lowest
        ([5.0, math.nan, math.nan], 0, 2),
        ([math.nan, 5.0], 1, 0),
        ([math.inf, math.nan], None, 2),
        ([-1.0, -2.0, -1.5], 1, 1),  # minus an accuracy
    ],
)
def test_the_best_evaluation_and_the_number_since_by_hand(values, best, since):
    evaluations = [Evaluation(step, value) for step, value in enumerate(values)]
    history = History(evaluations=evaluations)
    assert history.best == (None if best is None else evaluations[best])
    assert history.evaluations_since_best == since


def test_json_round_trips():
    assert History.from_json(HISTORY.to_json()) == HISTORY
    assert History.from_json(History().to_json()) == History()
    odd = History([StepRecord(1, 2.0, 1e-3, float("inf"), 1, 0.1)], stopped_early=True)
    assert History.from_json(odd.to_json()) == odd


@each_row("text", ["", "[]", '{"steps": [{"step": 1}], "evaluations": []}'])
def test_text_that_is_not_a_history_is_refused(text):
    with pytest.raises(ValueError, match="not a training history"):
        History.from_json(text)


def test_throughput_is_tokens_over_seconds():
    assert HISTORY.tokens_per_second == 300 / 0.75
    assert math.isnan(History().tokens_per_second)


def test_the_plot_shows_losses_and_evaluations_on_the_axes_it_is_given():
    axes = HISTORY.plot()
    assert HISTORY.plot(axes) is axes
    training, evaluation, *marks = History(HISTORY.steps, HISTORY.evaluations).plot().lines
    assert training.get_xydata().tolist() == [[1, 3.0], [2, 1.5], [3, 1.0]]
    assert evaluation.get_xydata().tolist() == [[2, 1.7], [3, 1.2]]
    assert not marks, "the last evaluation is the best"
    assert axes.get_xlabel() == "step" and "nats" in axes.get_ylabel()
    assert len(History(HISTORY.steps).plot().lines) == 1, "no evaluation, no second curve"
    with pytest.raises(ValueError, match="no steps to plot"):
        History().plot()


def test_the_plot_marks_the_best_evaluation_and_an_early_stop():
    worse = [*HISTORY.evaluations, Evaluation(4, 1.9)]
    star, end = History(HISTORY.steps, worse, stopped_early=True).plot().lines[2:]
    assert star.get_xydata().tolist() == [[3, 1.2]] and list(end.get_xdata()) == [3, 3]
    assert (star.get_label(), end.get_label()) == ("best: step 3", "stopped at step 3")
