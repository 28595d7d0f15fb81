"""Corpus ROUGE is the mean of the texts' scores, with an interval that covers as it says."""

import numpy as np
import pytest

from course_pkg.metrics.rouge import rouge_l, rouge_n
from course_pkg.metrics.rouge.corpus import USUAL, corpus_rouge
from tests.refusals import require_refusals

HYPOTHESES = ["the cat sat", "a dog barked at us", "it rained", ""]
REFERENCES = [["the cat sat down", "a cat sat"], ["the dog barked"], ["it rained all day"], ["so"]]


def test_means_are_those_of_the_texts_and_each_text_is_kept():
    found = corpus_rouge(HYPOTHESES, REFERENCES)
    assert tuple(found) == USUAL
    pairs = list(zip(HYPOTHESES, REFERENCES, strict=True))
    assert found["rouge2"].per_text == tuple(rouge_n(*pair, 2) for pair in pairs)
    assert found["rougeL"].per_text == tuple(rouge_l(*pair) for pair in pairs)
    for scores in found.values():
        for part in ("precision", "recall", "fmeasure"):
            values = [getattr(each, part) for each in scores.per_text]
            mean = getattr(scores, part)
            assert mean.mean == pytest.approx(np.mean(values))
            assert mean.low <= mean.mean <= mean.high


def test_options_reach_the_scores_and_lists_that_do_not_fit_raise_an_error():
    for stem, expected in ((False, 0), (True, 1)):
        found = corpus_rouge(["running"], ["runs"], ["rouge1"], stem=stem)
        assert found["rouge1"].fmeasure.mean == expected
    require_refusals(
        (["a"], ["a", "b"], USUAL, "1 hypotheses and 2 references"),
        ([], [], USUAL, "at least one hypothesis"),
        (["a"], ["a"], ["rouge0"], "kind must be one of rouge1"),
        (["a"], [[]], USUAL, "references is empty"),
        of=corpus_rouge,
    )
