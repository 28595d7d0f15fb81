"""What must hold for the cases of `bleu` beyond what holds for every assignment."""

import pytest

from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant

STUDENTS = ["", *(f"student-{number}" for number in range(300))]


@pytest.fixture(scope="module")
def key():
    return answer_key("bleu")


def variants(key, name):
    """The small cases of many students."""
    return [draw_variant(key, name, student) for student in STUDENTS]


def test_without_a_name_there_is_the_case_of_the_documents(key):
    assert variants(key, "one-reference")[0]["candidate"] == "a cat sat on mat"
    assert variants(key, "two-references")[0]["candidate"] == "the cat the cat on the mat"


def test_one_reference_shares_a_trigram_with_the_candidate_and_no_longer_run(key):
    for case in variants(key, "one-reference"):
        matches = [matched for matched, _ in key.expected(key["by-hand/counts"], case)]
        assert matches[2] > 0 == matches[3]
        assert len(case["candidate"].split()) < len(case["reference"].split()) <= 16


def test_the_closest_of_two_references_is_longer_and_the_other_one_shorter(key):
    for case in variants(key, "two-references"):
        c = len(case["candidate"].split())
        lengths = [len(reference.split()) for reference in case["references"]]
        assert min(lengths) < c < max(lengths) and max(lengths) - c < c - min(lengths)


def test_four_words_in_a_row_match_one_of_two_references(key):
    for case in variants(key, "two-references"):
        assert key.expected(key["by-hand/clipping"], case)[3][0] > 0
        assert key.expected(key["by-hand/two-references"], case)[2] > 0
