"""Honest submissions: noisy, slow and odd. All get full marks, or a page that says why not.

`QUICK` has cases of every kind; the others are exhaustive.
"""

import html

import pytest

from .canary_course import CLASSMATE, CORPUS_MARKS, Graded, GradedCorpus, grade_corpus
from .corpus import POINTS, TRIED, Case, load, parameters

CASES = {case.name: case for case in load("honest")}
QUICK = {
    "check-called-early", "data-beside", "files-named-as-modules", "id-unicode", "line-ends",
    "magics", "plots", "progress-bars", "tensors-for-numbers", "told-error", "told-other-name",
    "worker-pool",
}  # fmt: skip
pytestmark = CORPUS_MARKS


@pytest.fixture(scope="module")
def honest(tmp_path_factory, request) -> GradedCorpus:
    """The selected submissions, graded in one run under the default limits."""
    return grade_corpus(request, tmp_path_factory.mktemp("honest"), CASES, "--jobs=2")


@pytest.fixture(scope="module")
def graded(honest) -> Graded:
    """The results of the run."""
    return honest.graded


@pytest.fixture(params=parameters(CASES, QUICK))
def case(request) -> Case:
    """Each submission in turn."""
    return CASES[request.param]


def test_every_honest_submission_expects_full_marks_or_an_explanation():
    assert {case.score for case in CASES.values() if not case.told} == {POINTS}
    assert all(case.state == ("graded",) for case in CASES.values())


def test_the_quick_cases_have_every_kind():
    assert {CASES[name].kind for name in QUICK} == {case.kind for case in CASES.values()}


def test_it_gets_the_expected_score(case, graded):
    row = graded.row(case.id)
    assert row is not None and row["state"] == "graded", row
    assert float(row["score"]) == case.score, html.unescape(graded.page(case.id))[-3000:]


def test_its_extra_cells_ran(case, graded):
    if case.before or case.after:
        assert TRIED in graded.shown(case.id)


def test_the_page_names_what_was_wrong(case, graded):
    page = html.unescape(graded.page(case.id)).lower()  # a diagnosis begins with a capital
    assert page
    assert [text for text in case.told if text.lower() not in page] == []


def test_the_classmate_gets_full_marks(graded):
    assert float(graded.rows[CLASSMATE]["score"]) == POINTS


def test_nothing_is_left_on_the_machine(honest):
    assert honest.left == {}
