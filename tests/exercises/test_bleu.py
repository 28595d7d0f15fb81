"""What must hold for the cases of `bleu` that are worked by hand."""

from course_pkg.grading.questions.answer_key import answer_key
from course_pkg.grading.questions.draws import draw_variant


def test_one_reference_shares_no_run_of_four_words_and_one_of_two_references_does():
    key = answer_key("bleu")
    for student in (f"student-{number}" for number in range(60)):
        case = draw_variant(key, "one-reference", student)
        matches = [matched for matched, _ in key.expected(key["by-hand/counts"], case)]
        assert matches[2] > 0 == matches[3], student
        assert len(case["candidate"].split()) < len(case["reference"].split()), student
        case = draw_variant(key, "two-references", student)
        assert key.expected(key["by-hand/clipping"], case)[3][0] > 0, student
