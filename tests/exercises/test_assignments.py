"""What must hold for every assignment. Nothing here knows a particular one."""

import ast
import csv
import html
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

from course_pkg.grading.contract import registry
from course_pkg.grading.contract.exam import Exam
from course_pkg.grading.contract.questions import draw_cases
from course_pkg.grading.results.states import State

from .assignments import (
    EXERCISES,
    SOLUTIONS,
    notebook,
    places,
    run_in_process,
    with_answers,
    wrong_answers,
)


def lost(score) -> set[str]:
    """The names of the properties that were not earned."""
    return {p.name for p in score.result.properties if p.failure is not None}


def solution_lines(assignment: str) -> set[str]:
    """Every line that stands between BEGIN SOLUTION and END SOLUTION, or in a mark scheme."""
    lines, inside = set(), False
    for cell in notebook(SOLUTIONS, assignment).cells:
        for line in cell.source.splitlines():
            if re.search(r"(BEGIN|END) (SOLUTION|MARK SCHEME)", line):
                inside = "BEGIN" in line
            elif inside and len(line.strip()) > 12:
                lines.add(line.strip())
    return lines


def test_points_of_the_cells_are_those_of_the_questions(assignment):
    in_notebook = {q: p.points for q, p in places(notebook(SOLUTIONS, assignment)).items()}
    assert in_notebook == {q.name: q.points for q in registry.trusted(assignment).values()}


def test_every_question_can_be_asked(assignment):
    assert set(registry.ask(assignment).CALLS) == set(registry.trusted(assignment))


def test_numbers_by_hand_carry_at_most_a_fifth_of_the_points(assignment):
    questions = registry.trusted(assignment).values()
    cells = notebook(SOLUTIONS, assignment).cells
    total = sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in cells)
    assert 5 * sum(q.points for q in questions if q.variant) <= total


def test_every_question_has_three_hints_folded(assignment):
    nb = notebook(SOLUTIONS, assignment)
    for question, place in places(nb).items():
        task = nb.cells[place.answer - 1].source
        assert task.count("<details>") == task.count("</details>") == 3, question


def test_the_committed_release_equals_a_fresh_one(assignment, graded):
    fresh = graded.root / "exercises" / assignment
    committed = EXERCISES / assignment
    names = {p.name for p in fresh.iterdir()}
    assert names == {p.name for p in committed.iterdir() if p.name != ".ipynb_checkpoints"}
    for name in names:
        assert (fresh / name).read_bytes() == (committed / name).read_bytes(), name


def test_the_release_holds_no_answer_and_no_output(assignment):
    nb = notebook(EXERCISES, assignment)
    text = "\n".join(cell.source for cell in nb.cells)
    assert not re.search(r"(BEGIN|END) (SOLUTION|MARK SCHEME|HIDDEN)", text)
    shown = {line.strip() for line in text.splitlines()}
    assert solution_lines(assignment) and not solution_lines(assignment) & shown
    assert all(not cell.get("outputs") for cell in nb.cells)


def imports(path: Path) -> set[str]:
    """What a module imports, and what the modules beside it that it imports import."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {f".{node.module}"} | imports(path.parent / f"{node.module}.py")
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def test_the_student_side_imports_no_reference(assignment):
    found = imports(Path(registry.ask(assignment).__file__))
    allowed = {"typing", "torch", "numpy", "collections.abc"}
    allowed |= {"course_pkg.lm.load", "course_pkg.grading.asking"}
    beside = {name for name in found if re.fullmatch(r"\.\w+", name)}
    assert ".trusted" not in beside and found - beside <= allowed


@pytest.mark.slow
def test_stub_scores_zero_and_solution_full(assignment, graded):
    scores = graded.scores(assignment)
    checks = {nb_name(assignment, p): p.points for p in checks_of(assignment).values()}
    assert {name: scores["full"][name] for name in checks} == checks
    assert {scores["stub"][name] for name in checks} == {0.0}


def checks_of(assignment):
    return places(notebook(SOLUTIONS, assignment))


def nb_name(assignment, place):
    return notebook(SOLUTIONS, assignment).cells[place.check].metadata["nbgrader"]["grade_id"]


def test_every_question_has_three_wrong_answers(assignment):
    wrong = wrong_answers(assignment)
    for question, place in checks_of(assignment).items():
        assert sum(w.question == question for w in wrong) >= 3, (question, place)
    assert {w.question for w in wrong} <= set(checks_of(assignment))


def test_wrong_answers_lose_the_properties_they_break_and_are_recognized(
    assignment, wrong_rounds, matrix
):
    questions = registry.trusted(assignment)
    for row in wrong_rounds:
        nb = with_answers(notebook(SOLUTIONS, assignment), {w.question: w.code for w in row})
        scores = run_in_process(nb)
        for wrong in row:
            score = scores[wrong.question]
            assert lost(score) == set(wrong.loses), (wrong.question, wrong.name, score.report)
            told = {p.failure.misconception for p in score.result.properties if p.failure}
            said = {m.name: m.says for m in questions[wrong.question].misconceptions}
            assert told - {None} == ({said[wrong.told]} if wrong.told else set()), wrong.name
            question = questions[wrong.question]
            loss = sum(question.by_name[name].points for name in wrong.loses)
            matrix.append(
                (f"{assignment}/{wrong.question}", wrong.name, f"−{loss} of {question.points}",
                 ", ".join(wrong.loses), wrong.why)
            )  # fmt: skip


@pytest.mark.slow
def test_wrong_answers_lose_exactly_those_marks_under_nbgrader(assignment, graded, stock_rounds):
    scores, where = graded.scores(assignment), checks_of(assignment)
    questions = registry.trusted(assignment)
    for number, row in enumerate(stock_rounds, start=1):
        for wrong in row:
            question, place = questions[wrong.question], where[wrong.question]
            loss = sum(question.by_name[name].points for name in wrong.loses)
            earned = scores[f"wrong-{number}"][nb_name(assignment, place)]
            assert earned == place.points - loss, (wrong.question, wrong.name)


@pytest.mark.slow
def test_questions_of_a_round_that_are_right_keep_all_their_marks(assignment, graded, stock_rounds):
    scores, where = graded.scores(assignment), checks_of(assignment)
    for number, row in enumerate(stock_rounds, start=1):
        for question in where.keys() - {w.question for w in row}:
            name = nb_name(assignment, where[question])
            assert scores[f"wrong-{number}"][name] == where[question].points


@pytest.mark.slow
def test_course_grade_finds_the_same_on_cases_of_its_own(assignment, graded_by_us, wrong_rounds):
    questions = registry.trusted(assignment)
    wanted = {"full": {}, "stub": {q: set(question.by_name) for q, question in questions.items()}}
    for number, row in enumerate(wrong_rounds, start=1):
        wanted[f"wrong-{number}"] = {wrong.question: set(wrong.loses) for wrong in row}
    for student, losses in wanted.items():
        record = graded_by_us[student]
        assert record.state == State.GRADED, (student, record.reason)
        for question in record.questions:
            lost = {p.name for p in question.properties if p.failure is not None}
            assert lost == losses.get(question.question, set()), (student, question)


@pytest.mark.slow
def test_course_grade_recognizes_the_same_misconceptions(assignment, graded_by_us, wrong_rounds):
    questions = registry.trusted(assignment)
    for number, row in enumerate(wrong_rounds, start=1):
        record = {q.question: q for q in graded_by_us[f"wrong-{number}"].questions}
        for wrong in row:
            properties = record[wrong.question].properties
            told = {p.failure.misconception for p in properties if p.failure} - {None}
            said = {m.name: m.says for m in questions[wrong.question].misconceptions}
            assert told == ({said[wrong.told]} if wrong.told else set()), wrong.name


@pytest.mark.slow
def test_validate_passes_the_solution_and_fails_the_stub(assignment, graded):
    solution = graded.nbgrader("validate", f"submitted/full/{assignment}/{assignment}.ipynb")
    assert "Success! Your notebook passes all the tests." in solution.stdout, solution.stdout
    stub = graded.nbgrader("validate", f"submitted/stub/{assignment}/{assignment}.ipynb")
    failed = re.search(r"VALIDATION FAILED ON (\d+) CELL", stub.stdout)
    assert failed and int(failed[1]) == len(checks_of(assignment)), stub.stdout


@pytest.mark.slow
def test_feedback_names_the_property_each_lost_mark_was_for(assignment, graded, stock_rounds):
    done = graded.nbgrader("generate_feedback", assignment)
    assert done.returncode == 0, done.stderr
    folder = graded.root / "feedback"
    for number, row in enumerate(stock_rounds, start=1):
        path = folder / f"wrong-{number}" / assignment / f"{assignment}.html"
        page = html.unescape(path.read_text())
        for wrong in row:
            for name in wrong.loses:
                prop = registry.trusted(assignment)[wrong.question].by_name[name]
                assert prop.hint in page, (wrong.name, name)


@pytest.mark.slow
def test_export_writes_every_student_to_the_csv(assignment, graded):
    done = graded.nbgrader("export")
    assert done.returncode == 0, done.stderr
    with open(graded.root / "grades.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    auto = sum(place.points for place in checks_of(assignment).values())
    assert float(rows["full"]["score"]) == auto and float(rows["stub"]["score"]) == 0


def test_variants_differ_and_tell_every_misconception(assignment):
    variants = registry.ask(assignment).VARIANTS
    for question in registry.trusted(assignment).values():
        if not question.variant:
            continue
        seen = set()
        for number in range(200):
            exam = Exam(assignment, f"student-{number}")
            seen.add(str(exam._draw(question.name)[0].inputs))
        draw_cases(question, None, variants[question.variant](None))
        assert len(seen) > 150, question.name


def test_draws_depend_on_key_and_student_and_on_nothing_else(assignment):
    for name, question in registry.trusted(assignment).items():
        if question.variant:
            continue

        def drawn(student, key, name=name):
            return str(Exam(assignment, student, key).inputs(name))

        assert drawn("ada", b"k") == drawn("ada", b"k")
        if sum(p.cases for p in question.properties) > 2:
            assert len({drawn("ada", b"k"), drawn("bob", b"k"), drawn("ada", b"l")}) == 3, name


def test_source_notebooks_hold_no_output(assignment):
    nb = notebook(SOLUTIONS, assignment)
    nbformat.validate(nb)
    assert all(not cell.get("outputs") for cell in nb.cells)
    assert {p.suffix for p in (SOLUTIONS / assignment).iterdir() if p.is_file()} == {".ipynb"}


EDGES = {  # of which the right answers are 0 and 1 by nature: a point each
    "brevity-penalty/longer", "brevity-penalty/empty", "corpus/zero", "corpus/nothing",
    "sentence/nothing", "rouge-n/ends", "rouge-l/ends",
}  # fmt: skip


def test_no_drawn_property_but_an_edge_is_earned_by_a_constant(assignment):
    """Else its answers could be written down without any method."""
    for name, question in registry.trusted(assignment).items():
        if question.variant:
            continue
        seen: dict[str, set[str]] = {prop.name: set() for prop in question.properties}
        for student in range(8):
            cases = draw_cases(question, np.random.default_rng(student))
            for prop, values in seen.items():
                values.add(str([case.expected for case in cases if case.property == prop]))
        constant = {prop for prop, values in seen.items() if len(values) == 1}
        assert {f"{name}/{prop}" for prop in constant} <= EDGES
        assert all(prop.points == 1 for prop in question.properties if prop.name in constant)
