"""The paired bootstrap: its properties, and a case in which every sample is known."""

import random

import numpy as np
import pytest

from course_pkg.metrics.bleu import PreparedReferences, corpus_bleu
from course_pkg.metrics.significance import paired_bootstrap


def systems(share_better, size=100, seed=0):
    """Two systems that make the same kind of error; the second makes it less often."""
    rng = random.Random(seed)
    references = [" ".join(rng.choices("abcdefghij", k=12)) for _ in range(size)]

    def add_errors(text, probability):
        return " ".join(word if rng.random() > probability else "x" for word in text.split())

    worse = [add_errors(text, 0.3) for text in references]
    better = [add_errors(text, 0.3 - share_better) for text in references]
    return worse, better, [[text] for text in references]


def test_scores_are_those_of_the_whole_set():
    worse, better, references = systems(0.1)
    result = paired_bootstrap(worse, better, references, samples=20)
    assert result.baseline == corpus_bleu(worse, references).score
    assert result.system == corpus_bleu(better, references).score
    assert result.difference == result.system - result.baseline
    assert result.scores.shape == (20, 2)


def test_every_sample_is_the_score_of_the_drawn_sentences():
    worse, better, references = systems(0.1, size=15)
    result = paired_bootstrap(worse, better, references, samples=4, seed=7)
    generator = np.random.default_rng(7)
    for row in result.scores:
        drawn = generator.choice(15, 15)
        for score, system in zip(row, (worse, better), strict=True):
            texts, groups = zip(*((system[i], references[i]) for i in drawn), strict=True)
            assert score == corpus_bleu(texts, groups).score


def test_a_clear_difference_is_significant_and_equal_quality_is_not():
    clear = paired_bootstrap(*systems(0.15))
    assert clear.wins > 0.99
    assert clear.p_value < 0.01
    assert clear.interval[0] > 0
    equal = paired_bootstrap(*systems(0.0))
    assert 0.05 < equal.wins < 0.95
    assert equal.interval[0] < 0 < equal.interval[1]
    assert equal.p_value > 0.05


def test_a_95_percent_interval_misses_zero_in_about_5_percent_of_equal_systems():
    # Equally good systems, many test sets: the interval should miss 0 about once in 20.
    missed = 0
    for seed in range(60):
        low, high = paired_bootstrap(*systems(0.0, 60, seed), samples=200).interval
        missed += not low <= 0 <= high
    assert missed <= 9  # with p = 0.05 and 60 tries, 10 or more happen about once in 1,000


def test_swapping_the_systems_reverses_the_difference():
    worse, better, references = systems(0.05)
    one, other = (
        paired_bootstrap(*pair, references, samples=200)
        for pair in ((worse, better), (better, worse))
    )
    assert one.difference == -other.difference
    assert one.wins == pytest.approx(1 - other.wins)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))
    assert one.p_value == other.p_value


def test_a_system_against_itself_never_wins():
    _, better, references = systems(0.1)
    result = paired_bootstrap(better, better, references, samples=50)
    assert (result.difference, result.wins, result.interval, result.p_value) == (0, 0, (0, 0), 1)


def test_the_same_seed_repeats_the_result_and_another_seed_changes_it():
    arguments = systems(0.05)
    first, again, other = (paired_bootstrap(*arguments, samples=30, seed=s) for s in (1, 1, 2))
    assert first == again
    assert np.array_equal(first.scores, again.scores)
    assert not np.array_equal(first.scores, other.scores)


def test_prepared_references_and_smoothing_are_used():
    hypotheses = ["A b", "C d"]
    references = [["a b"], ["c d"]]
    prepared = PreparedReferences(references, lowercase=True)
    result = paired_bootstrap(
        hypotheses, hypotheses, prepared, samples=3, smoothing="none", effective_order=True
    )
    assert result.system == 1.0
    assert paired_bootstrap(hypotheses, hypotheses, references, samples=3).system == 0.0


def test_no_samples_and_systems_of_unequal_length_raise_an_error():
    with pytest.raises(ValueError, match="samples must be an integer of at least 1"):
        paired_bootstrap(["a"], ["a"], [["a"]], samples=0)
    with pytest.raises(ValueError, match="2 hypotheses, but references for 1"):
        paired_bootstrap(["a"], ["a", "b"], [["a"]])
