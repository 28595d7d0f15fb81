"""Bootstraps and randomization; tests/parity compares both with sacrebleu."""

import random

import numpy as np
import pytest

from course_pkg.metrics.bleu import PreparedReferences, corpus_bleu
from course_pkg.metrics.significance import (
    bootstrap,
    mean_intervals,
    paired_bootstrap,
    paired_randomization,
)


def systems(share_better, size=100):
    """Two systems that make the same kind of error; the second makes it less often."""
    rng = random.Random(0)
    references = [" ".join(rng.choices("abcdefghij", k=12)) for _ in range(size)]

    def add_errors(text, probability):
        return " ".join(word if rng.random() > probability else "x" for word in text.split())

    worse = [add_errors(text, 0.3) for text in references]
    better = [add_errors(text, 0.3 - share_better) for text in references]
    return worse, better, [[text] for text in references]


def test_every_sample_is_the_score_of_the_drawn_sentences():
    worse, better, references = systems(0.1, size=15)
    result = paired_bootstrap(worse, better, references, samples=40, seed=7)
    assert result.baseline == corpus_bleu(worse, references).score
    assert result.system == corpus_bleu(better, references).score
    assert result.difference == result.system - result.baseline
    differences = result.scores[:, 1] - result.scores[:, 0]
    assert result.wins == np.mean(differences > 0)
    assert result.interval == pytest.approx(np.quantile(differences, [0.025, 0.975]))
    generator = np.random.default_rng(7)
    for row in result.scores[:4]:
        drawn = generator.choice(15, 15)
        for score, system in zip(row, (worse, better), strict=True):
            texts, groups = zip(*((system[i], references[i]) for i in drawn), strict=True)
            assert score == corpus_bleu(texts, groups).score


def test_prepared_references_and_smoothing_are_used():
    hypotheses = ["A b", "C d"]
    references = [["a b"], ["c d"]]
    prepared = PreparedReferences(references, lowercase=True)
    result = paired_bootstrap(
        hypotheses, hypotheses, prepared, samples=3, smoothing="none", effective_order=True
    )
    assert result.system == 1.0
    assert paired_bootstrap(hypotheses, hypotheses, references, samples=3).system == 0.0


def test_the_bootstrap_of_one_system_is_a_column_of_the_paired_one():
    worse, better, references = systems(0.1, size=15)
    paired = paired_bootstrap(worse, better, references, samples=30, seed=3)
    assert (
        bootstrap(better, references, samples=30, seed=3).tolist() == paired.scores[:, 1].tolist()
    )


def test_a_system_against_itself_no_samples_and_systems_of_unequal_length():
    texts = ["a b", "c d"]
    references = [["a b"], ["c e"]]
    assert paired_randomization(texts, texts, references, samples=33).p_value == 1
    for test in (paired_randomization, lambda a, _, r, samples: bootstrap(a, r, samples=samples)):
        with pytest.raises(ValueError, match="samples must be an integer of at least 1"):
            test(texts, texts, references, samples=0)
    with pytest.raises(ValueError, match="samples must be an integer of at least 1"):
        paired_bootstrap(["a"], ["a"], [["a"]], samples=0)
    with pytest.raises(ValueError, match="2 hypotheses, but references for 1"):
        paired_bootstrap(["a"], ["a", "b"], [["a"]])


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    scores = np.random.default_rng(0).normal(3, 2, (400, 2))
    for column, found in zip(scores.T, mean_intervals(scores, samples=4000), strict=True):
        error = column.std() / 20
        assert found.mean == pytest.approx(column.mean())
        assert found.low == pytest.approx(found.mean - 1.96 * error, abs=error / 4)
        assert found.high == pytest.approx(found.mean + 1.96 * error, abs=error / 4)
    for scores in (np.zeros((0, 2)), np.zeros(3), [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"scores must be \(n, columns\)"):
            mean_intervals(scores)
