"""What must hold for the cases of `rouge` beyond what holds for every assignment."""

import itertools

import pytest

from course_pkg.grading.checks.rouge import student
from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant
from course_pkg.grading.contract.session import Session
from course_pkg.grading.contract.verdict import judge
from course_pkg.sandbox.policy import module_masks


@pytest.fixture(scope="module")
def key():
    return answer_key("rouge")


def test_wrong_numbers_by_hand_differ_from_the_right_one_and_from_each_other(key):
    cases = [
        draw_variant(key, "by-hand", f"student-{number}" * bool(number)) for number in range(300)
    ]
    assert (cases[0]["reference"], cases[0]["candidate"]) == ("the cat is on the mat", "cat mat")
    for question in key.assignment.questions.values():
        for case in cases if question.variant else ():
            values = [key.outcome(question, case, wrong)["value"] for wrong in question.wrong]
            values.append(key.expected(question, case))
            for one, other in itertools.combinations(values, 2):
                assert key.difference(question, "value", one, other), (question.name, case)


def test_every_library_that_would_answer_is_masked(key):
    names = {path.name for path in module_masks(key.assignment.masked, "")}
    assert names == {"metrics", "rouge_score", "nltk", "rapidfuzz"}


def with_places(a, b):
    """The LCS from the places of each token and increasing series of them: hashes, no table."""
    places, ends = {}, []
    for place, token in enumerate(b):
        places.setdefault(token, []).append(place)
    for token in a:
        for place in reversed(places.get(token, [])):
            before = sum(end < place for end in ends)
            ends[before : before + 1] = [place]
    return len(ends)


def test_a_method_that_hashes_tokens_earns_all_points_of_the_lcs(key):
    question, cases = key["lcs"], Session("rouge", "ada", answers=key).cases("lcs")
    outcomes = [{"value": student.call_lcs(with_places, case.inputs)} for case in cases]
    assert judge(key, question, cases, outcomes).earned == question.points


def test_comparisons_are_counted_and_not_timed():
    with pytest.raises(RuntimeError, match="more than 3 times"):
        student.call_lcs(with_places, {"a": ["x", "y"], "b": ["y", "x"], "_most": 3})


def test_the_lcs_that_rouge_l_is_given_knows_its_two_texts_alone():
    def answer(candidate, reference, beta, lcs_length):
        with pytest.raises(RuntimeError, match="candidate and the reference"):
            lcs_length(candidate, candidate)
        return lcs_length(candidate, reference), lcs_length(tuple(reference), candidate)

    inputs = {"candidate": ["a", "b"], "reference": ["b"], "beta": 1.0, "lcs": 1}
    assert student.call_rouge_l(answer, inputs) == (1, 1)
