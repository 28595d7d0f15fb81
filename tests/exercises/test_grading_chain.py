"""A class graded by stock nbgrader, and by `course grade`."""

import html
import re

import pytest
from offline import loaded_urls

from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.questions import registry
from tests.exercises.assignments import EXERCISES, SOLUTIONS, artifacts, notebook, places

pytestmark = pytest.mark.slow


def cell_name(assignment, place):
    """The grade_id of a question's test cell."""
    return notebook(SOLUTIONS, assignment).cells[place.check].metadata["nbgrader"]["grade_id"]


def questions_of(assignment):
    where = places(notebook(SOLUTIONS, assignment))
    return [(q, where[q.name]) for q in registry.load(assignment).questions.values()]


def test_the_committed_release_is_a_fresh_one(chain, graded):
    fresh, committed = (
        {path.name: path.read_bytes() for path in (folder / chain).iterdir() if path.is_file()}
        for folder in (graded.root / "exercises", EXERCISES)
    )
    assert fresh == committed


def test_nbgrader_gives_the_solution_everything_the_stub_nothing_and_takes_the_exact_points(
    chain, graded, rounds
):
    scores = graded.scores(chain)
    for question, place in questions_of(chain):
        name = cell_name(chain, place)
        assert scores["full"][name] == question.points
        assert scores["stub"][name] == 0
        for number, row in enumerate(rounds, start=1):
            wrong = row.get(question.name)
            everything = [p.name for p in question.properties] if question.artifact else ()
            loses = wrong[0].loses if wrong else everything
            left = sum(p.points for p in question.properties if p.name not in loses)
            assert scores[f"wrong-{number}"][name] == left, (question.name, wrong)


def test_course_grade_finds_the_same_on_other_cases_and_recognizes_the_wrong_answers(
    chain, graded_by_us, rounds
):
    questions = registry.load(chain).questions
    expected = {
        "full": {},
        "stub": {n: {p.name for p in q.properties} for n, q in questions.items()},
    }
    for number, row in enumerate(rounds, start=1):
        expected[f"wrong-{number}"] = {name: set(w.loses) for name, (w, _) in row.items()}
        for name in artifacts(chain):
            expected[f"wrong-{number}"][name] = {p.name for p in questions[name].properties}
    for student, losses in expected.items():
        record = graded_by_us[student]
        assert record.state == State.GRADED, (student, record.reason)
        for question in record.questions:
            lost = {p.name for p in question.properties if p.failure is not None}
            assert lost == losses.get(question.question, set()), (student, question)
    for number, row in enumerate(rounds, start=1):
        record = {q.question: q for q in graded_by_us[f"wrong-{number}"].questions}
        for name, (wrong, _) in row.items():
            failures = [p.failure for p in record[name].properties if p.failure]
            assert any(wrong.says in f.explanations for f in failures), (name, wrong.name)


def test_validate_passes_the_solution_and_fails_the_stub(chain, graded):
    solution = graded.nbgrader("validate", f"submitted/full/{chain}/{chain}.ipynb")
    assert "Success! Your notebook passes all the tests." in solution.stdout, solution.stdout
    stub = graded.nbgrader("validate", f"submitted/stub/{chain}/{chain}.ipynb")
    failed = re.search(r"VALIDATION FAILED ON (\d+) CELL", stub.stdout)
    assert failed and int(failed[1]) == len(questions_of(chain)), stub.stdout


def test_feedback_says_which_mistake_was_made(chain, graded, rounds):
    done = graded.nbgrader("generate_feedback", chain)
    assert done.returncode == 0, done.stderr
    for number, row in enumerate(rounds, start=1):
        path = graded.root / "feedback" / f"wrong-{number}" / chain / f"{chain}.html"
        assert loaded_urls(path.read_text()) == []
        page = html.unescape(path.read_text())
        for name, (wrong, _) in row.items():
            assert wrong.says in page, (name, wrong.name)
