"""Rules, generated cases, few-shot examples, and diversity."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from course_pkg.metrics.bleu import sentence_bleu
from course_pkg.studies.red_teaming.red_team_cases import (
    NO_DIGITS,
    FormatRule,
    GeneratedCase,
    distinct_cases,
    distinct_ngrams,
    distinct_share,
    draw_examples,
    draw_probabilities,
    few_shot_prompt,
    question_of,
    self_bleu,
    zero_shot_prompt,
)
from tests.refusals import require_refusals

TEXTS = [
    "What is your name?",
    "what is your name?",
    "What is your favorite food?",
    "How many people live in your town, and how many people work there?",
    "Why?",
    "Do you like the the the sea?",
    "Do you like the sea?",
]


def test_self_bleu_is_the_mean_of_sentence_bleu_with_all_others():
    found = self_bleu(TEXTS)
    lower = [text.lower() for text in TEXTS]
    for index, score in enumerate(found.of_texts):
        others = lower[:index] + lower[index + 1 :]
        assert score == pytest.approx(sentence_bleu(lower[index], others).score, abs=1e-12)
    assert found.mean == pytest.approx(np.mean(found.of_texts))


def test_distinct_measures_by_hand():
    assert distinct_ngrams(["a a a", "a b"], 1) == 2 / 5
    assert distinct_ngrams(["a a a", "a b"], 2) == 2 / 3
    assert distinct_ngrams(["a"], 2) == 0
    assert distinct_share(["A  b", "a b", "c"]) == 2 / 3


def test_bad_input_is_one_clear_error():
    rng = np.random.default_rng(0)
    too_few = "at least as many cases as examples"
    require_refusals(
        (lambda: self_bleu(["alone"]), "two or more"),
        (lambda: distinct_share([]), "empty"),
        (lambda: draw_examples(["a"], [1.0], 2, 1.0, rng), too_few),
        (lambda: draw_examples(["a", "b"], [1.0], 1, 1.0, rng), too_few),
        (lambda: draw_probabilities([], 1.0), "finite"),
        (lambda: draw_probabilities([math.nan], 1.0), "finite"),
        (lambda: draw_probabilities([1], 0), "temperature"),
        (lambda: GeneratedCase("A?", "", 1.5), "violation"),
        (lambda: distinct_cases(["A?"]), "TypeError.*GeneratedCases"),
        (lambda: FormatRule("broken", "Say nothing.", "("), "not a regular expression"),
        errors=(TypeError, ValueError),
    )


def test_probabilities_are_uniform_at_a_high_temperature_and_the_best_at_a_low_one():
    assert draw_probabilities([0, 1, 0.5], 1e6) == pytest.approx([1 / 3] * 3, abs=1e-6)
    assert draw_probabilities([0, 1, 0.5], 1e-3) == pytest.approx([0, 1, 0])
    ratio = draw_probabilities([0.0, 0.3], 0.1)
    assert ratio[1] / ratio[0] == pytest.approx(math.exp(3))
    assert draw_probabilities([1000, 1001], 1.0).sum() == pytest.approx(1)


def test_examples_are_drawn_one_after_the_other_without_replacement():
    pool = ["a", "b", "c"]
    violations = [0.0, 0.5, 1.0]
    rounds = 4_000
    rng = np.random.default_rng(0)
    drawn = Counter(tuple(draw_examples(pool, violations, 2, 1.0, rng)) for _ in range(rounds))
    weights = dict(zip(pool, np.exp(violations), strict=True))
    for first, second in permutations(pool, 2):
        total = sum(weights.values())
        chance = weights[first] / total * weights[second] / (total - weights[first])
        error = math.sqrt(chance * (1 - chance) / rounds)
        assert drawn[first, second] / rounds == pytest.approx(chance, abs=4 * error)


def test_a_case_ends_with_its_first_question_mark_and_is_kept_once():
    for continuation, case in (
        (" Who are you? 2. Why?", "Who are you?"),
        ("\n\n What?", "What?"),
        ("I see.", None),
        ("?", None),
        (" Tell me.\nWhy?", None),
        ("", None),
    ):
        assert question_of(continuation) == case
    cases = [GeneratedCase(text, "", r) for text, r in [("A?", 0.0), ("a ?", 1.0), ("A?", 1.0)]]
    assert [case.violation for case in distinct_cases(cases)] == [0.0, 1.0]
    assert [case.text for case in distinct_cases(cases)] == ["A?", "a ?"]
    assert few_shot_prompt("Q:", []) == zero_shot_prompt("Q:") == "Q:\n1."


def test_the_rule_counts_digits_anywhere():
    for reply, violation in (
        ("I am seventeen.", 0),
        ("1. First", 1),
        ("In 2020, yes", 1),
        ("Chapter IV", 0),
        ("", 0),
    ):
        assert NO_DIGITS.violation(reply) == violation
    system, user = NO_DIGITS.messages("How old are you?")
    assert system == {"role": "system", "content": NO_DIGITS.instruction}
    assert user == {"role": "user", "content": "How old are you?"}
