"""The author's matrix and what `course author-check` finds wrong with an assignment."""

import json

import nbformat
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading import author
from course_pkg.grading.questions import registry


def problems(tmp_path):
    return author.missing("bleu", tmp_path) + author.problems("bleu", tmp_path)


def test_an_assignment_as_it_should_be_has_no_problems(copied, tmp_path):
    assert problems(tmp_path) == []


def test_a_solution_that_is_not_the_model_answer_is_shown_with_the_difference(copied, tmp_path):
    copied("bleu.ipynb", "hypothesis_length == 0:", "hypothesis_length < 1:")
    (problem,) = problems(tmp_path)
    assert "brevity-penalty: no cell is the model answer of brevity_penalty" in problem
    assert "-    if hypothesis_length == 0:" in problem


def test_a_cell_with_other_points_than_the_question_is_named(copied, tmp_path):
    path = tmp_path / "solutions" / "bleu" / "bleu.ipynb"
    notebook = nbformat.read(path, 4)
    (cell,) = [c for c in notebook.cells if 'check("bleu/corpus"' in c.source]
    cell.metadata.nbgrader.points = 5
    nbformat.write(notebook, path)
    problem = problems(tmp_path)[0]
    assert problem == 'corpus: expected one cell with check("bleu/corpus", …), 8 points'


def test_too_many_points_by_hand_are_named(copied, tmp_path):
    path = tmp_path / "solutions" / "bleu" / "bleu.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"] = [c for c in notebook["cells"] if "bleu/sentence" not in str(c["source"])]
    path.write_text(json.dumps(notebook))
    assert "numbers worked by hand have 5 of 23 points; at most a fifth" in problems(tmp_path)


PARTS = (
    ("solutions/bleu/bleu.ipynb", "write the tasks"),
    ("checks/bleu/questions.toml", "write the questions"),
    ("checks/bleu/cases.py", "draws the cases"),
    ("checks/bleu/__init__.py", "add an empty one"),
    ("exercises/bleu/bleu.ipynb", "`course release bleu`"),
    ("book/exercises.md", "add its line"),
)


def test_the_command_lists_every_part_that_is_missing_and_draws_what_it_can(copied, tmp_path):
    for count, (part, todo) in enumerate(PARTS, start=1):
        (tmp_path / part).unlink()
        result = CliRunner().invoke(app, ["author-check", "bleu", "--students", "1"])
        told = [line for line in result.stderr.splitlines() if todo in line]
        assert result.exit_code == 1 and len(told) == 1 and part in told[0], result.output
        assert len(result.stderr.splitlines()) == count, result.stderr
        assert ("corpus (8 points)" in result.output) == (count == 1)


def test_too_many_attested_points_are_named(copied, tmp_path):
    copied("questions.toml", "property.pooled = { ", "property.pooled = { attested = true, ")
    assert problems(tmp_path) == []
    copied("questions.toml", "property.clip = { ", "property.clip = { attested = true, ")
    assert problems(tmp_path) == ["attested properties have 3 of 27 points; at most a tenth"]


def test_a_property_that_a_guess_earns_must_say_so_and_no_other_may(copied, tmp_path):
    text = "property.shorter = { points = 1"
    copied("questions.toml", text, "property.shorter = { constant = true, points = 1")
    copied("questions.toml", "longer = { points = 1, cases = 8", "longer = { points = 1, cases = 2")
    first, second = problems(tmp_path)
    assert "brevity-penalty/shorter: it is called constant" in first
    assert "longer: a guess is right for 32 of 32 students (1.0; 1.0): draw more" in second


def test_a_wrong_answer_that_no_case_tells_apart_makes_the_questions_unusable(copied):
    text = (registry.ASSIGNMENTS / "bleu" / "questions.toml").read_text()
    assert 'loses = ["ties"]' in text
    copied("questions.toml", 'loses = ["ties"]', 'loses = ["closest", "ties"]')
    result = CliRunner().invoke(app, ["author-check", "bleu", "--students", "2"])
    assert (result.exit_code, "200 draws don't tell" in result.output) == (2, True)


def test_a_problem_with_the_notebook_fails_the_command(copied):
    copied("bleu.ipynb", "bleu/corpus", "bleu/corpse")
    result = CliRunner().invoke(app, ["author-check", "bleu", "--students", "2"])
    assert (result.exit_code, "problem: corpus" in result.output) == (1, True)


def test_the_command_prints_the_matrix_and_says_what_is_next(copied):
    result = CliRunner().invoke(app, ["author-check", "bleu", "--students", "2"])
    assert result.exit_code == 0
    assert "corpus (8 points)" in result.output and "no problems; now run" in result.output
    result = CliRunner().invoke(app, ["author-check", "blue"])
    assert result.exit_code == 2 and "no assignment is called 'blue'" in result.output
