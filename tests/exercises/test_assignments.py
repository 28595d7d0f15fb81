"""What must hold for every assignment. Nothing here knows a particular one.

What each kind of test guards, so that nothing is guarded twice:

- here, `course author-check`: the model answers, which are not the reference that gives the right
  values, earn everything; each wrong answer loses exactly what it says; the notebook has both;
- test_other_answers.py: right answers of other forms earn everything, so checks aren't too strict;
- test_mutants.py: no slip in a model answer keeps every point, so cases aren't too weak;
- test_nearly_right.py: larger faults that learners would hardly give, but cases must tell;
- test_attested.py: what a program can claim, and what it can't;
- test_examples.py: what the tasks show;
- test_<assignment>.py: what only this assignment promises, such as that no number by hand is near
  a midpoint, or that a function of its `student.py` refuses something.
"""

import ast
import itertools
import re
from collections.abc import Iterator

import nbformat
import pytest

from course_pkg.common.fingerprints.reach import all_imports
from course_pkg.grading import author
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.answer_key import answer_key, defined_name
from course_pkg.grading.questions.draws import draw_variant
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.question_record import mistakes_of
from course_pkg.grading.questions.report import as_record
from course_pkg.sandbox.policy import module_masks
from tests.exercises.assignments import (
    EXERCISES,
    ROOT,
    SOLUTIONS,
    assignments,
    drawn_for,
    notebook,
    places,
)

BY_HAND = [
    name for name in assignments() if any(q.variant for q in registry.load(name).questions.values())
]
STUDENTS = 3  # whose cases are drawn here; `course author-check` draws those of 25


@pytest.mark.slow
def test_author_check_finds_nothing_and_a_report_names_each_wrong_answer_once(assignment):
    rows = author.matrix(assignment, STUDENTS)
    assert [(row.question.name, row.wrong, row.problem) for row in rows if row.problem] == []
    assert author.missing(assignment, ROOT) + author.problems(assignment, ROOT) == []
    again = GradingSession(assignment, "ada")
    session = drawn_for(assignment)
    for name, question in session.questions.items():
        assert str(again.inputs(name)) == str(session.inputs(name)), "depends on something else"
        for wrong in () if question.artifact else question.wrong:
            pairs = zip(session.inputs(name), session.unchanged(name), strict=True)
            outcomes = [session.answers.outcome(question, i, wrong, same) for i, same in pairs]
            session.record(name, outcomes)
            mistakes = mistakes_of(as_record(session.verdict(name)))
            costs = [len(mistake.lost) for mistake in mistakes]
            assert costs == [len(wrong.loses)], (name, wrong.name)
            assert not any(label == "hint" for label, _ in mistakes[0].details), (name, wrong.name)


def test_notebooks_questions_and_reports_keep_their_rules(assignment):
    rules = (imports, wrong_answers, hints, reports, names, shown_inputs, outputs, release)
    rules += (students_side,)
    assert [(rule.__name__, problem) for rule in rules for problem in rule(assignment)] == []


def imports(assignment: str) -> Iterator[str]:
    """Model answers use only what the notebook imports before them."""
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
            yield from {ast.unparse(node) for node in needed} - imported


def wrong_answers(assignment: str) -> Iterator[str]:
    """A question has three wrong answers, or one if it is worked by hand; not too many in all."""
    questions = registry.load(assignment).questions.values()
    if sum(len(question.wrong) for question in questions) > 45:  # mutants cover the rest
        yield "more than 45 wrong answers"
    for question in questions:
        least = 1 if question.variant else 3
        if not question.artifact and len(question.wrong) < least:  # files have tests of their own
            yield question.name


def hints(assignment: str) -> Iterator[str]:
    """Every task has three hints, folded."""
    nb = notebook(SOLUTIONS, assignment)
    for question, place in places(nb).items():
        task = nb.cells[place.answer - 1].source
        if not task.count("<details>") == task.count("</details>") == 3:
            yield question


def runs(text: str) -> set[tuple[str, ...]]:
    """Every run of four words and signs in a text."""
    words = re.findall(r"\w+|[^\w\s]", text)
    return {tuple(words[i : i + 4]) for i in range(len(words) - 3)}


def reports(assignment: str) -> Iterator[str]:
    """No report gives away the code of the third hint."""
    nb = notebook(SOLUTIONS, assignment)
    for name, place in places(nb).items():
        before, hint = nb.cells[place.answer - 1].source.split("<summary>Hint 3</summary>")
        code = set().union(*map(runs, re.findall("`([^`]+)`", hint))) - runs(before)
        question = registry.load(assignment).questions[name]
        told = [text for p in question.properties for text in (p.says, p.hint)]
        told += [wrong.says for wrong in question.wrong]
        yield from (f"{name}: {text}" for text in told if runs(text) & code)


def names(assignment: str) -> Iterator[str]:
    """A notebook checks an answer under the name that its report uses."""
    sources = [cell.source for cell in notebook(SOLUTIONS, assignment).cells]
    for name, question in registry.load(assignment).questions.items():
        called = f'check("{assignment}/{name}", {defined_name(question.answer)})'
        if not question.artifact and not any(called in source for source in sources):
            yield called


def shown_inputs(assignment: str) -> Iterator[str]:
    """Reports show only inputs that the notebook names."""
    session = drawn_for(assignment)
    text = "\n".join(cell.source for cell in notebook(EXERCISES, assignment).cells)
    for name, question in session.questions.items():
        keys = set().union(*session.inputs(name)) if question.call else ()
        for key in keys:
            if not key.startswith("_") and not re.search(rf"\b{key}\b", text):
                yield f"{name}: {key}"


def outputs(assignment: str) -> Iterator[str]:
    """A source notebook is valid, holds no output, and is alone in its folder."""
    nb = notebook(SOLUTIONS, assignment)
    nbformat.validate(nb)
    yield from (cell.source for cell in nb.cells if cell.get("outputs"))
    files = (path.name for path in (SOLUTIONS / assignment).iterdir() if path.is_file())
    yield from (name for name in files if not name.endswith(".ipynb"))


def release(assignment: str) -> Iterator[str]:
    """A release holds no line of an answer or of a mark scheme, and no output."""
    nb = notebook(EXERCISES, assignment)
    text = "\n".join(cell.source for cell in nb.cells)
    yield from re.findall(r"(?:BEGIN|END) (?:SOLUTION|MARK SCHEME|HIDDEN)", text)
    yield from (cell.source for cell in nb.cells if cell.get("outputs"))
    hidden = solution_lines(assignment)
    assert hidden
    yield from hidden & {line.strip() for line in text.splitlines()}


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


def students_side(assignment: str) -> Iterator[str]:
    """What runs beside a student's code imports no reference, and nothing beside itself."""
    masked = (*registry.load(assignment).masked, "course_pkg.grading.assignments")
    for path in registry.student_files(assignment):
        for module, _ in all_imports(ast.parse(path.read_text()), "course_pkg.grading.assignments"):
            if module.startswith(masked):
                yield module


@pytest.mark.parametrize("assignment", BY_HAND)
def test_numbers_by_hand_differ_from_student_to_student_and_tell_the_wrong_answers(assignment):
    key = answer_key(assignment)
    questions = [q for q in key.assignment.questions.values() if q.variant]
    for name in sorted({q.variant for q in questions}):
        seen = {str(draw_variant(key, name, f"student-{i}")) for i in range(200)}
        assert len(seen) > 150, name
    for number, question in itertools.product(range(40), questions):  # one that tells none raises
        assert GradingSession(assignment, f"student-{number}", answers=key).cases(question.name)
    for question in questions:  # a classmate's numbers rarely fit
        drawn = [draw_variant(key, question.variant, f"student-{i}") for i in range(120)]
        right = [key.expected(question, case) for case in drawn]
        pairs = list(itertools.permutations(right, 2))
        fit = sum(key.difference(question, "value", mine, other) is None for mine, other in pairs)
        assert fit <= 0.05 * len(pairs), (question.name, fit / len(pairs))


DOCUMENTS = (  # the case that somebody without a name gets, which is that of the book
    ("bleu", "one-reference", {"candidate": "a cat sat on mat"}),
    ("bleu", "two-references", {"candidate": "the cat the cat on the mat"}),
    ("flash-attention", "by-hand", {"scores": [1.0, 3.0, 2.0, 3.5], "values": [2, -1, 4, 1]}),
    ("perplexity", "by-hand", {"length": 100, "mean_log_probability": -2.5}),
    ("rouge", "by-hand", {"reference": "the cat is on the mat", "candidate": "cat mat"}),
    ("scheduling", "by-hand", {"answers": [5, 2, 3, 7, 4]}),
)


def test_without_a_name_there_is_the_case_of_the_documents():
    for assignment, name, expected in DOCUMENTS:
        case = draw_variant(answer_key(assignment), name, "")
        assert case | expected == case, (assignment, name)


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


def test_every_library_that_would_answer_is_installed_here_and_masked():
    for name, masked in (
        ("bleu", "metrics nltk sacrebleu"),
        ("rouge", "metrics nltk rapidfuzz rouge_score"),
        ("lora-script", "finetuning"),
    ):
        paths = module_masks(registry.load(name).masked, "")
        assert sorted(path.name for path in paths) == masked.split()
        assert all(path.is_dir() for path in paths), paths


UNMASKED = {  # what students may use, too
    "concepts": "acceleration.quantization.levels metrics.bleu metrics.rouge.rouge_measures",
    "lora-script": "adapters.injection adapters.lora adapters.peft_files",
    "peft-methods": "acceleration.attention.plain",
}


@pytest.mark.parametrize("assignment", registry.assignments())
def test_what_the_checks_compare_with_is_masked(assignment):
    """A module that moves out of a masked folder would be there for a student to import."""
    shared = ("grading", "common", "lm", "pages")
    given = (*registry.load(assignment).masked, *(f"course_pkg.{name}" for name in shared))
    imported = {
        module
        for path in registry.folder(assignment).rglob("*.py")
        for module, _ in all_imports(ast.parse(path.read_text()), "course_pkg.grading.assignments")
        if module.startswith("course_pkg.") and not module.startswith(given)
    }
    assert imported == {f"course_pkg.{name}" for name in UNMASKED.get(assignment, "").split()}


def test_cases_depend_on_key_and_student():
    others = (("ada", b"k"), ("bob", b"k"), ("ada", b"l"))
    drawn = {str(GradingSession("lora-math", *who).inputs("forward")) for who in others}
    assert len(drawn) == 3
