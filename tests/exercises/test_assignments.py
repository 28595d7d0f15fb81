"""What must hold for every assignment. Nothing here knows a particular one."""

import ast
import itertools
import re

import nbformat
import pytest

from course_pkg.grading import author
from course_pkg.grading.contract import registry
from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant
from course_pkg.grading.contract.grading_session import GradingSession
from course_pkg.grading.contract.question_record import findings
from course_pkg.grading.contract.report import as_record
from course_pkg.sandbox.policy import module_masks
from tests.exercises.assignments import EXERCISES, SOLUTIONS, notebook, places

STUDENTS = 4  # whose cases are drawn here; `course author-check` draws those of 25


@pytest.mark.slow
def test_each_wrong_answer_loses_what_it_says_and_is_recognized(assignment):
    rows = author.matrix(assignment, STUDENTS)
    assert not [(row.question.name, row.wrong, row.problem) for row in rows if row.problem]


@pytest.mark.slow
def test_a_report_names_each_wrong_answer_once_and_without_a_hint(assignment):
    session = GradingSession(assignment)
    for name, question in session.questions.items():
        for wrong in () if question.artifact else question.wrong:
            pairs = zip(session.inputs(name), session.unchanged(name), strict=True)
            outcomes = [session.answers.outcome(question, i, wrong, same) for i, same in pairs]
            session.record(name, outcomes)
            found = findings(as_record(session.verdict(name)))
            assert [len(each.lost) for each in found] == [len(wrong.loses)], (name, wrong.name)
            assert not any(label == "hint" for label, _ in found[0].details), (name, wrong.name)


@pytest.mark.slow
def test_notebook_points_and_constants_are_as_questions_toml_says(assignment):
    assert author.problems(assignment, SOLUTIONS) == []


def test_model_answers_use_only_what_the_notebook_imports(assignment):
    key = answer_key(assignment)
    nb = notebook(SOLUTIONS, assignment)
    imported: set[str] = set()
    where = {place.answer: name for name, place in places(nb).items()}
    for index, cell in enumerate(nb.cells):
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("locked"):
            nodes = ast.parse(cell.source).body
            imported |= {
                ast.unparse(n) for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)
            }
        if index in where:
            needed = ast.parse(key.setup(key[where[index]])).body
            assert {ast.unparse(node) for node in needed} <= imported, where[index]


def test_every_question_has_three_wrong_answers_or_is_worked_by_hand(assignment):
    questions = registry.load(assignment).questions.values()
    assert sum(len(question.wrong) for question in questions) <= 45  # mutants cover the rest
    for question in questions:
        least = 1 if question.variant else 3
        if question.artifact:  # its wrong answers are files, which have tests of their own
            least = 0
        assert len(question.wrong) >= least, question.name


def test_every_question_has_three_hints_folded(assignment):
    nb = notebook(SOLUTIONS, assignment)
    for question, place in places(nb).items():
        task = nb.cells[place.answer - 1].source
        assert task.count("<details>") == task.count("</details>") == 3, question


def runs(text: str) -> set[tuple[str, ...]]:
    """Every run of four words and signs in a text."""
    words = re.findall(r"\w+|[^\w\s]", text)
    return {tuple(words[i : i + 4]) for i in range(len(words) - 3)}


def test_no_report_gives_away_the_code_of_the_third_hint(assignment):
    nb = notebook(SOLUTIONS, assignment)
    for name, place in places(nb).items():
        before, hint = nb.cells[place.answer - 1].source.split("<summary>Hint 3</summary>")
        code = set().union(*map(runs, re.findall("`([^`]+)`", hint))) - runs(before)
        question = registry.load(assignment).questions[name]
        told = [text for p in question.properties for text in (p.says, p.hint)]
        for text in told + [wrong.says for wrong in question.wrong]:
            assert not runs(text) & code, (name, text)


def test_reports_show_only_inputs_that_the_notebook_names(assignment):
    session = GradingSession(assignment)
    text = "\n".join(cell.source for cell in notebook(EXERCISES, assignment).cells)
    for name, question in session.questions.items():
        for inputs in session.inputs(name) if question.call else ():
            for key in inputs:
                known = key.startswith("_") or re.search(rf"\b{key}\b", text)
                assert known, (name, key)


def test_source_notebooks_hold_no_output(assignment):
    nb = notebook(SOLUTIONS, assignment)
    nbformat.validate(nb)
    assert all(not cell.get("outputs") for cell in nb.cells)
    assert {p.suffix for p in (SOLUTIONS / assignment).iterdir() if p.is_file()} == {".ipynb"}


def test_the_release_holds_no_answer_and_no_output(assignment):
    nb = notebook(EXERCISES, assignment)
    text = "\n".join(cell.source for cell in nb.cells)
    assert not re.search(r"(BEGIN|END) (SOLUTION|MARK SCHEME|HIDDEN)", text)
    shown = {line.strip() for line in text.splitlines()}
    assert solution_lines(assignment) and not solution_lines(assignment) & shown
    assert all(not cell.get("outputs") for cell in nb.cells)


def solution_lines(assignment: str) -> set[str]:
    """Every line between BEGIN SOLUTION and END SOLUTION, or in a mark scheme."""
    lines = set()
    inside = False
    for cell in notebook(SOLUTIONS, assignment).cells:
        for line in cell.source.splitlines():
            if re.search(r"(BEGIN|END) (SOLUTION|MARK SCHEME)", line):
                inside = "BEGIN" in line
            elif inside and len(line.strip()) > 12:
                lines.add(line.strip())
    return lines


def test_the_students_side_imports_no_reference(assignment):
    masked = registry.load(assignment).masked
    for path in registry.student_files(assignment):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, "the student's side imports nothing beside it"
                names = [node.module]
            for name in names:
                assert not name.startswith(masked), name
                assert not name.startswith("course_pkg.grading.checks"), name


def test_variants_differ_and_every_one_tells_the_wrong_answers(assignment):
    key = answer_key(assignment)
    for name in sorted({q.variant for q in key.assignment.questions.values() if q.variant}):
        seen = {str(draw_variant(key, name, f"student-{i}")) for i in range(200)}
        assert len(seen) > 150, name
    for number in range(40):
        session = GradingSession(assignment, f"student-{number}", answers=key)
        for question in key.assignment.questions.values():
            if question.variant:
                assert session.cases(question.name)


def test_a_classmates_numbers_rarely_fit(assignment):
    key = answer_key(assignment)
    for question in key.assignment.questions.values():
        if not question.variant:
            continue
        cases = [draw_variant(key, question.variant, f"student-{i}") for i in range(120)]
        right = [key.expected(question, case) for case in cases]
        pairs = list(itertools.permutations(right, 2))
        fit = sum(key.difference(question, "value", mine, other) is None for mine, other in pairs)
        assert fit <= 0.05 * len(pairs), (question.name, fit / len(pairs))


@pytest.mark.parametrize(
    ("assignment", "name", "expected"),
    [
        ("bleu", "one-reference", {"candidate": "a cat sat on mat"}),
        ("bleu", "two-references", {"candidate": "the cat the cat on the mat"}),
        ("perplexity", "by-hand", {"length": 100, "mean_log_probability": -2.5}),
        ("rouge", "by-hand", {"reference": "the cat is on the mat", "candidate": "cat mat"}),
    ],
)
def test_without_a_name_there_is_the_case_of_the_documents(assignment, name, expected):
    case = draw_variant(answer_key(assignment), name, "")
    assert case | expected == case


@pytest.mark.parametrize("name", ["bleu", "rouge"])
def test_wrong_numbers_by_hand_differ_from_the_right_one_and_from_each_other(name):
    key = answer_key(name)
    by_hand = [q for q in key.assignment.questions.values() if q.variant]
    for question, student in itertools.product(by_hand, ["", *map(str, range(300))]):
        case = draw_variant(key, question.variant, student)
        values = [key.outcome(question, case, wrong)["value"] for wrong in question.wrong]
        values.append(key.expected(question, case))
        for one, other in itertools.combinations(values, 2):
            assert key.difference(question, "value", one, other), (question.name, case)


@pytest.mark.parametrize(
    ("name", "masked"),
    [
        ("bleu", "metrics nltk sacrebleu"),
        ("rouge", "metrics nltk rapidfuzz rouge_score"),
        ("lora-script", "finetuning"),
    ],
)
def test_every_library_that_would_answer_is_installed_here_and_masked(name, masked):
    paths = module_masks(registry.load(name).masked, "")
    assert sorted(path.name for path in paths) == masked.split()
    assert all(path.is_dir() for path in paths)


def test_cases_depend_on_key_and_student_and_on_nothing_else(assignment):
    def drawn(student, key, name):
        return str(GradingSession(assignment, student, key).inputs(name))

    for name, question in registry.load(assignment).questions.items():
        if question.variant or question.artifact:  # an artifact's cases stay with the checker
            continue
        assert drawn("ada", b"k", name) == drawn("ada", b"k", name)
        if sum(p.cases for p in question.properties) > 2:
            others = (("ada", b"k"), ("bob", b"k"), ("ada", b"l"))
            assert len({drawn(*other, name) for other in others}) == 3, name
