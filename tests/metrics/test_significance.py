import random

import numpy as np
import pytest

from course_pkg.metrics.bleu import PreparedReferences, corpus_bleu
from course_pkg.metrics.significance import (
    TextStatistics,
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
    prepared = PreparedReferences(references)
    statistics = [prepared.statistics(texts) for texts in (worse, better)]
    result = paired_bootstrap(*statistics, samples=40, seed=7)
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
    alone = bootstrap(statistics[1], samples=40, seed=7)
    assert alone.tolist() == result.scores[:, 1].tolist()


def test_prepared_references_and_smoothing_are_used():
    texts = ["A b", "C d"]
    prepared = PreparedReferences([["a b"], ["c d"]], lowercase=True)
    options = {"smoothing": "none", "effective_order": True}
    assert prepared.statistics(texts, **options).total == 1.0
    assert PreparedReferences([["a b"], ["c d"]]).statistics(texts).total == 0.0


def test_the_statistics_of_a_mean_are_its_scores():
    scores = np.random.default_rng(0).random(20)
    drawn = bootstrap(TextStatistics.of_scores(scores), samples=50, seed=3)
    rows = np.random.default_rng(3).choice(20, (50, 20))  # the same draws in one call
    assert drawn == pytest.approx(scores[rows].mean(axis=1))


def test_randomization_counts_the_exchanges_that_differ_as_much():
    """Of the four exchanges of two texts, two differ as much as the systems; ties by rounding."""
    one = TextStatistics.of_scores([0.1, 0.2])
    other = TextStatistics.of_scores([0.4, 0.5])
    result = paired_randomization(one, other, samples=4000)
    assert result.p_value == pytest.approx(0.5, abs=0.03)
    assert paired_randomization(one, one, samples=33).p_value == 1


def test_no_samples_and_systems_of_unequal_length_are_refused():
    one = TextStatistics.of_scores([1, 0])
    for test in (
        lambda samples: bootstrap(one, samples=samples),
        lambda samples: paired_bootstrap(one, one, samples=samples),
        lambda samples: paired_randomization(one, one, samples=samples),
    ):
        with pytest.raises(ValueError, match="samples must be an integer of at least 1"):
            test(0)
    with pytest.raises(ValueError, match="the baseline has 2 texts, the system 3"):
        paired_bootstrap(one, TextStatistics.of_scores([1, 0, 1]))
    with pytest.raises(ValueError, match="2 hypotheses, but references for 1"):
        PreparedReferences([["a"]]).statistics(["a", "b"])


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    scores = np.random.default_rng(0).normal(3, 2, (400, 2))
    for column, interval in zip(scores.T, mean_intervals(scores, samples=4000), strict=True):
        error = column.std() / 20
        assert interval.mean == pytest.approx(column.mean())
        assert interval.low == pytest.approx(interval.mean - 1.96 * error, abs=error / 4)
        assert interval.high == pytest.approx(interval.mean + 1.96 * error, abs=error / 4)
    for scores in (np.zeros((0, 2)), np.zeros(3), [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"scores must be \(n, columns\)"):
            mean_intervals(scores)
