"""What must hold for the cases of `bleu` that are worked by hand."""

import pytest

from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant

KEY = answer_key("bleu")


@pytest.mark.parametrize("number", range(60))
def test_one_reference_shares_no_run_of_four_words_and_one_of_two_references_does(number):
    case = draw_variant(KEY, "one-reference", f"student-{number}")
    matches = [matched for matched, _ in KEY.expected(KEY["by-hand/counts"], case)]
    assert matches[2] > 0 == matches[3]
    assert len(case["candidate"].split()) < len(case["reference"].split())
    case = draw_variant(KEY, "two-references", f"student-{number}")
    assert KEY.expected(KEY["by-hand/clipping"], case)[3][0] > 0
