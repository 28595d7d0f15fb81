"""Scores of labels' words: those of a plain forward pass, and what calibration subtracts."""

import numpy as np
import pytest

from course_pkg.studies.benchmarks.label_scores import LabelScores, score_labels
from course_pkg.studies.benchmarks.suites import SuiteItem, load_shape
from tests.studies.plain_pass import log_prob


def test_words_are_scored_after_the_item_and_after_the_empty_input(tiny):
    shape = load_shape("sentiment")
    prompt = shape.prompts[0]
    scores = score_labels(*tiny, prompt, shape.items[:2])
    for row, item in enumerate(shape.items[:2]):
        texts = (f"Review: {item.fields['sentence']}\nSentiment:", "Review: N/A\nSentiment:")
        for text, found in zip(texts, (scores.given, scores.empty), strict=True):
            wanted = [log_prob(*tiny, text, f" {word}") for word in prompt.words]
            np.testing.assert_allclose(found[row], wanted, atol=1e-4)  # float32 logits
    shape = load_shape("causes")
    item = shape.items[0]
    scores = score_labels(*tiny, shape.prompts[0], [item])
    wanted = [log_prob(*tiny, "N/A because", f" {option}") for option in item.options]
    np.testing.assert_allclose(scores.empty[0], wanted, atol=1e-4)


def test_a_missing_option_is_never_chosen_and_the_expectation_stays_between_the_labels():
    given = np.array([[-5.0, -6.0, -np.inf], [-1.0, -2.0, -3.0]])
    scores = LabelScores(given, np.array([[-1.0, -9.0, -np.inf], [-1.0, -2.0, -9.0]]))
    assert scores.choices().tolist() == [0, 0]
    assert scores.choices(calibrated=True).tolist() == [1, 2]
    assert scores.scores(calibrated=True)[0, 2] == -np.inf
    scores = LabelScores(np.log([[0.1, 0.2, 0.1], [1e-9, 1e-9, 0.3]]), np.zeros((2, 3)))
    np.testing.assert_allclose(scores.expectation(), [1.0, 2.0], atol=1e-6)


def test_an_empty_input_that_favors_nothing_changes_nothing():
    given = np.random.default_rng(0).normal(size=(20, 3))
    scores = LabelScores(given, np.full((20, 3), -1.5))
    np.testing.assert_array_equal(scores.choices(), scores.choices(calibrated=True))
    np.testing.assert_allclose(scores.expectation(), scores.expectation(calibrated=True))


def test_no_items_and_a_missing_field_are_errors(tiny):
    prompt = load_shape("sentiment").prompts[0]
    with pytest.raises(ValueError, match="items is empty"):
        score_labels(*tiny, prompt, [])
    with pytest.raises(ValueError, match="needs the field 'sentence'"):
        score_labels(*tiny, prompt, [SuiteItem("x", "x", {"text": "Good."}, 1)])
