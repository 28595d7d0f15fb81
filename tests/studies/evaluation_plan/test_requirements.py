"""Requirements: verdicts by intervals, the fewest items, and facts in an answer."""

import json
import math

import pytest

from course_pkg.evaluation.statistics import Interval, mean_interval, wilson_interval
from course_pkg.evaluation.task_file import BUILT_IN
from course_pkg.studies.evaluation_plan.requirements import Requirement, check_facts
from tests.refusals import require_refusals

SPLITS = ("", "-tune", "-validation")


def _items(split: str) -> list[dict]:
    path = BUILT_IN / f"customer-service{split}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_verdict_needs_the_whole_interval_of_groups():
    for low, high, at_least, at_most in (
        (0.82, 0.9, "passed", "failed"),
        (0.8, 0.9, "passed", "not decided"),  # a bound on the threshold meets it
        (0.7, 0.9, "not decided", "not decided"),
        (0.7, 0.8, "not decided", "passed"),
        (0.6, 0.79, "failed", "passed"),
        (0.8, 0.8, "passed", "passed"),
    ):
        interval = Interval((low + high) / 2, low, high, 0.95)
        assert Requirement("a", "at least", 0.8).decide(interval) == at_least
        assert Requirement("a", "at most", 0.8).decide(interval) == at_most
    requirement = Requirement("a", "at least", 0.8)
    assert str(requirement) == "a: at least 0.8"
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


def test_no_number_of_items_is_enough_for_a_share_that_misses_the_threshold():
    assert Requirement("a", "at least", 0.99).fewest_items(0.5) is None


def test_facts_are_whole_words_and_each_one_is_needed_or_forbidden():
    assert check_facts("THIRTY DAYS.", [["30 days", "thirty days"]]).has_all_facts
    assert not check_facts("130 days", [["30 days"]]).has_all_facts
    assert check_facts("We don’t.", [[r"\w+n't"]]).has_all_facts
    assert check_facts("It costs $7.", [[r"\$7"]]).has_all_facts
    found = check_facts("Free delivery, overnight.", [["free"], ["canada"]], ["free", "overnight"])
    assert found.missing == (("canada",),)
    assert found.forbidden == ("free", "overnight")


def test_bad_input_is_an_error_that_names_it():
    require_refusals(
        (lambda: Requirement("a", "above", 0.5), "direction"),
        (lambda: Requirement("a", "at least", math.nan), "threshold"),
        (lambda: Requirement("a", "at least", 0.5).fewest_items(1.5), "share"),
        (lambda: check_facts("text", [[]]), "no wording"),
        (lambda: check_facts("text", [["("]]), "regular expression"),
    )


def test_every_reference_has_its_facts_and_nothing_forbidden():
    for split in SPLITS:
        for item in _items(split):
            for answer in item["answers"]:
                found = check_facts(answer, item["required"], item["forbidden"])
                assert found.has_all_facts, item["id"]
                assert not found.forbidden, item["id"]
