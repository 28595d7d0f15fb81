"""What must hold for the cases of `rouge` beyond what holds for every assignment."""

import pytest

from course_pkg.grading.assignments.rouge import student
from tests.exercises.test_other_answers import with_places


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
