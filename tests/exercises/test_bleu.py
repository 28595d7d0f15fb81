"""What must hold for the checks of `bleu` beyond what holds for every assignment."""

from itertools import combinations

import numpy as np
import pytest

from course_pkg.grading.checks.bleu import ask, methods
from course_pkg.grading.contract import registry
from course_pkg.grading.contract.exam import variant_rng
from course_pkg.grading.contract.values import as_crossing
from course_pkg.metrics.bleu.score import corpus_bleu
from course_pkg.sandbox.policy import module_masks

STUDENTS = ["", *(f"student-{number}" for number in range(300))]


def variants(name: str) -> list[dict]:
    """The small cases of many students."""
    rngs = (variant_rng(student, "bleu", name) if student else None for student in STUDENTS)
    return [ask.VARIANTS[name](rng) for rng in rngs]


@pytest.mark.parametrize("smoothing", ["none", "exp"])
def test_without_a_fault_the_wrong_methods_give_the_reference_score(smoothing):
    rng = np.random.default_rng(5)
    words, seen = list("abcd"), set()

    def text() -> list[str]:
        return rng.choice(words, size=int(rng.integers(4, 12))).tolist()

    for _ in range(200):
        hypotheses = [text() for _ in range(int(rng.integers(1, 5)))]
        references = [[text() for _ in range(int(rng.integers(1, 4)))] for _ in hypotheses]
        score = corpus_bleu(
            [" ".join(hypothesis) for hypothesis in hypotheses],
            [[" ".join(one) for one in own] for own in references],
            smoothing=smoothing,
            tokenize="whitespace",
        ).score
        ours = methods.bleu(hypotheses, references, smoothing=smoothing)
        assert ours == pytest.approx(score, rel=1e-12)
        seen.add(score == 0)
    assert smoothing == "exp" or seen == {True, False}


def test_the_case_with_one_reference_has_a_trigram_in_common_and_no_longer_run():
    question = registry.trusted("bleu")["by-hand/counts"]
    for case in variants("one-reference"):
        matches = [matched for matched, _ in question.expected(case)]
        assert matches[2] > 0 == matches[3]
        assert len(case["candidate"].split()) < len(case["reference"].split()) <= 9


def test_the_closest_of_two_references_is_longer_than_the_candidate_and_the_other_shorter():
    for case in variants("two-references"):
        c = len(case["candidate"].split())
        lengths = [len(reference.split()) for reference in case["references"]]
        assert min(lengths) < c < max(lengths) and max(lengths) - c < c - min(lengths)


def test_a_wrong_number_by_hand_has_one_explanation():
    same = {("by-hand/scores", "no-total", "late")}  # 1/2 and 1/total, where the total is 2
    for question in registry.trusted("bleu").values():
        for case in variants(question.variant) if question.variant else ():
            values = [(m.name, as_crossing(m.value(case))) for m in question.misconceptions]
            for (one, value), (other, another) in combinations(values, 2):
                if question.compare(value, another) is None:
                    assert (question.name, one, other) in same, case


def test_every_library_that_would_answer_is_installed_here_and_masked():
    masks = module_masks(registry.masked("bleu"), "{name}")
    assert set(masks.values()) == {"course_pkg.metrics", "sacrebleu", "nltk"}
    assert all(path.is_dir() for path in masks)
