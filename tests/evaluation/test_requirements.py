"""Requirements: verdicts by intervals, the fewest items, and facts in an answer."""

import json
import math
import re
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.evaluation.requirements import Requirement, check_facts
from course_pkg.evaluation.statistics import Interval, mean_interval, wilson_interval
from course_pkg.evaluation.task_file import BUILT_IN, load_task

SPLITS = ("", "-tune", "-validation")
BOUNDS = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted)


def _items(split: str) -> list[dict]:
    path = BUILT_IN / f"customer-service{split}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("low", "high", "at_least", "at_most"),
    [
        (0.82, 0.9, "passed", "failed"),
        (0.8, 0.9, "passed", "not decided"),  # a bound on the threshold meets it
        (0.7, 0.9, "not decided", "not decided"),
        (0.7, 0.8, "not decided", "passed"),
        (0.6, 0.79, "failed", "passed"),
        (0.8, 0.8, "passed", "passed"),
    ],
)
def test_a_verdict_needs_the_whole_interval(low, high, at_least, at_most):
    interval = Interval((low + high) / 2, low, high, 0.95)
    assert Requirement("a", "at least", 0.8).decide(interval) == at_least
    assert Requirement("a", "at most", 0.8).decide(interval) == at_most


@given(BOUNDS, st.floats(0, 1))
def test_at_most_is_at_least_of_the_negative(bounds, threshold):
    low, high = bounds
    interval = Interval(low, low, high, 0.95)
    mirrored = replace(interval, estimate=-low, low=-high, high=-low)
    assert Requirement("a", "at most", threshold).decide(interval) == Requirement(
        "a", "at least", -threshold
    ).decide(mirrored)


def test_measure_decides_by_the_interval_of_groups():
    requirement = Requirement("a", "at least", 0.8)
    found = requirement.measure([1.0] * 40)
    assert (found.interval, found.verdict) == (mean_interval([1.0] * 40), "passed")
    groups = [number // 8 for number in range(40)]  # 5 groups: the same scores decide nothing
    assert requirement.measure([1.0] * 40, groups).verdict == "not decided"


@pytest.mark.parametrize(("threshold", "share"), [(0.8, 1.0), (0.8, 0.9), (0.9, 1.0), (0.5, 0.6)])
def test_fewest_items_pass_and_all_smaller_numbers_do_not(threshold, share):
    requirement = Requirement("a", "at least", threshold)
    fewest = requirement.fewest_items(share)

    def passes(items):
        right = math.floor(round(share * items, 9))
        return requirement.decide(wilson_interval(right, items)) == "passed"

    assert passes(fewest)
    assert not any(map(passes, range(1, fewest)))


def test_fewest_items_of_a_perfect_system_by_hand():
    # Wilson's lower bound of n out of n is n / (n + z²), at least t if n >= z² t / (1 - t)
    by_hand = math.ceil(1.959964**2 * 0.8 / 0.2)
    assert Requirement("a", "at least", 0.8).fewest_items(1.0) == by_hand
    assert Requirement("a", "at most", 0.2).fewest_items(0.0) == by_hand


def test_no_number_of_items_is_enough_for_a_share_that_misses_the_threshold():
    assert Requirement("a", "at least", 0.99).fewest_items(0.5) is None


def test_facts_are_whole_words_in_any_case_and_with_any_apostrophe():
    assert check_facts("THIRTY DAYS.", [["30 days", "thirty days"]]).has_all_facts
    assert not check_facts("130 days", [["30 days"]]).has_all_facts
    assert check_facts("We don’t.", [[r"\w+n't"]]).has_all_facts
    assert check_facts("It costs $7.", [[r"\$7"]]).has_all_facts


def test_each_fact_is_needed_and_each_forbidden_statement_is_named():
    found = check_facts("Free delivery, overnight.", [["free"], ["canada"]], ["free", "overnight"])
    assert found.missing == (("canada",),)
    assert found.forbidden == ("free", "overnight")


def test_the_check_reads_words_and_not_their_meaning():
    assert check_facts("You can't return it within 30 days.", [["30 days"]]).has_all_facts


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Requirement("a", "above", 0.5), "direction"),
        (lambda: Requirement("a", "at least", math.nan), "threshold"),
        (lambda: Requirement("a", "at least", 0.5).fewest_items(1.5), "share"),
        (lambda: check_facts("text", [[]]), "no wording"),
        (lambda: check_facts("text", [["("]]), "regular expression"),
    ],
)
def test_bad_input_is_an_error_that_names_it(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_text_in_place_of_wordings_is_an_error():
    with pytest.raises(TypeError, match="a fact"):
        check_facts("text", ["30 days"])


@pytest.mark.parametrize("split", SPLITS)
def test_every_reference_has_its_facts_and_nothing_forbidden(split):
    for item in _items(split):
        for answer in item["answers"]:
            found = check_facts(answer, item["required"], item["forbidden"])
            assert found.has_all_facts, item["id"]
            assert not found.forbidden, item["id"]


def test_a_constant_answer_is_rarely_right():
    items = _items("")
    inside = [item for item in items if item["in_policy"]]
    for answer in ("Yes.", "No.", "I don't know. Please call 555-0142."):
        right = [check_facts(answer, item["required"], item["forbidden"]) for item in inside]
        assert sum(each.has_all_facts for each in right) <= 2, answer


def test_splits_share_no_topic_no_question_and_no_near_duplicate():
    def grams(text):
        words = re.findall(r"\w+", text.lower())
        return {tuple(words[k : k + 3]) for k in range(len(words) - 2)}

    items = {split: _items(split) for split in SPLITS}
    assert [len(items[split]) for split in SPLITS] == [60, 78, 20]
    for first, second in combinations(SPLITS, 2):
        topics = [{item["topic"] for item in items[split]} for split in (first, second)]
        assert not topics[0] & topics[1]
        for one in items[first]:
            for other in items[second]:
                a = grams(one["question"])
                b = grams(other["question"])
                assert len(a & b) <= 0.5 * len(a | b), (one["question"], other["question"])


def test_the_policy_is_in_the_task_and_its_last_line_hands_over():
    policy = (BUILT_IN / "customer-service-policy.txt").read_text("utf-8")
    task = load_task("customer-service")
    assert policy.strip() in task.template.description
    assert "555-0142" in policy.splitlines()[-1]
    assert len(task.items) == 60
