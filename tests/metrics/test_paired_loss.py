import math
import random

import pytest

from course_pkg.metrics.paired_loss import LossChange, loss_change
from tests.refusals import require_refusals


def test_changes_that_are_the_same_at_each_token_are_certain():
    assert loss_change([3.0, 5.0], [3.0, 5.0], [2, 4]) == LossChange(0.0, 0.0, 2)
    change = loss_change([1.0 + 2 * 0.25, 9.0 + 6 * 0.25], [1.0, 9.0], [2, 6])
    assert change.nats == 0.25 and change.margin == pytest.approx(0, abs=1e-12)


def test_with_texts_of_one_length_it_is_the_usual_paired_interval():
    draws = random.Random(0)
    baseline = [draws.gauss(40, 9) for _ in range(12)]
    losses = [loss + draws.gauss(1, 2) for loss in baseline]
    change = loss_change(losses, baseline, [10] * 12)
    means = [(a - b) / 10 for a, b in zip(losses, baseline, strict=True)]
    mean = sum(means) / 12
    deviation = math.sqrt(sum((m - mean) ** 2 for m in means) / 11)
    assert change.nats == pytest.approx(mean)
    assert change.margin == pytest.approx(1.96 * deviation / math.sqrt(12))


def test_the_order_of_texts_does_not_matter_and_the_sign_turns_around():
    losses = [5.0, 7.0, 2.0]
    baseline = [4.0, 8.0, 1.0]
    tokens = [3, 4, 1]
    forward = loss_change(losses, baseline, tokens)
    shuffled = loss_change(losses[::-1], baseline[::-1], tokens[::-1])
    assert shuffled.margin == pytest.approx(forward.margin)
    assert loss_change(baseline, losses, tokens).nats == pytest.approx(-forward.nats)
    assert str(forward) == f"{forward.nats:+.3f} ± {forward.margin:.3f}"


def test_bad_input_is_one_clear_error():
    require_refusals(
        ([1.0], [1.0, 2.0], [1, 1], "1 losses, 2 of the baseline"),
        ([1.0], [1.0], [3], "1 texts: an interval needs two"),
        ([1.0, 1.0], [1.0, 2.0], [3, 0], "a text has no token"),
        ([1.0, 1.0], [1.0, 2.0], [3, math.nan], "a text has no token"),
        ([1.0, math.nan], [1.0, 2.0], [3, 1], "a loss is NaN"),
        of=loss_change,
    )
