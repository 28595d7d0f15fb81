"""Where a completion ends, and which part of an answer is the program."""

from textwrap import indent

import pytest

from course_pkg.studies.code_benchmarks.problems import (
    complete_program,
    cut_at_stop,
    extract_program,
    few_shot_prompt,
    load_code_items,
    load_humaneval,
)

ADD = "def add(x, y):\n    return x + y\n"


@pytest.fixture(scope="module")
def add():
    return load_humaneval()[53]


@pytest.fixture(scope="module")
def with_import():
    return load_humaneval()[0]


def test_a_completion_ends_before_the_next_statement_of_the_file(subtests):
    for stop in ("class A:", "def b():", "# done", "if x:", "print(add(1, 2))"):
        with subtests.test(stop=stop):
            body = "    if x:\n        print(x)  # inside\n    return x\n"
            assert cut_at_stop(f"{body}\n{stop}\n") == body


def test_a_completion_follows_the_prompt_and_is_kept_whole_without_a_stop(add):
    assert complete_program(add, "    return x + y") == add.prompt + "    return x + y"
    double = load_code_items()[0]
    assert complete_program(double, "n):\n    return n") == "def double(n):\n    return n"
    assert cut_at_stop("    return 1") == "    return 1"
    assert cut_at_stop("a, b", stops=[]) == "a, b"


def test_the_block_that_defines_the_function_is_the_program(add, subtests):
    for answer in (
        f"```python\n{ADD}```",
        f"Sure!\n\n```\n{ADD}```\nIt adds.",
        f"First:\n```\nx = 1\n```\nThen:\n```python\n{ADD}```\n```\nadd(1, 2)\n```",
        f"```python\n{ADD}",
        f"  ```py\n{ADD}  ```",
        "1. It adds:\n\n   ```python\n" + indent(ADD, "   ") + "   ```\n",  # in a list
        ADD,
    ):
        with subtests.test(answer=answer):
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
