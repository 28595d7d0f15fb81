"""What the tasks show as examples is what the model answers give.

An example is a line of Python in a task, and a comment that begins with its value.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from course_pkg.grading.assignments.multiple_choice.student import encode
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.answer_key import answer_key
from tests.exercises.assignments import SOLUTIONS, notebook

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PIECES = ["A", "n", "s", "w", "er", "e", "r", ":", " ", "Ans", "Answer", "yes", " yes", "no", "o"]
# What a notebook describes in words, or loads, is given here.
GIVEN: dict[str, dict[str, Any]] = {
    "multiple-choice": {"encode": partial(encode, vocabulary=PIECES)},
    "perplexity": {"TRY_SMOLLM2": False},
}
LOADED = {"model", "score", "tokenizer"}  # of the course's small model: other tests run these
SHOWN = {"tensor": torch.tensor, "torch": torch, "Counter": Counter, "ValueError": ValueError}


def examples(assignment: str) -> Iterator[tuple[str, Any, Any]]:
    key = answer_key(assignment)
    names: dict[str, Any] = dict(GIVEN.get(assignment, {}))
    for question in registry.load(assignment).questions.values():
        exec(key.setup(question), names)
        if question.call and not question.artifact:
            exec(question.answer, names)
    for cell in notebook(SOLUTIONS, assignment).cells:
        meta = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code":
            if meta.get("locked") and not meta["grade"] and "variant(" not in cell.source:
                exec(cell.source, names)
            continue
        for code in BLOCK.findall(cell.source):
            yield from shown_values(code, names)


def shown_values(code: str, names: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Run a block of examples, and give those whose comment begins with a value."""
    lines = code.splitlines()
    body = ast.parse(code).body
    ends = [node.lineno - 1 for node in body[1:]] + [len(lines)]
    for node, end in zip(body, ends, strict=True):
        source = ast.unparse(node)
        if LOADED - set(names) & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
            continue
        if not isinstance(node, ast.Expr):
            exec(source, names)
            continue
        try:
            value = eval(source, names)
        except ValueError as error:
            value = type(error)
        after = [lines[node.end_lineno - 1][node.end_col_offset :], *lines[node.end_lineno : end]]
        comment = " ".join(line.strip(" #") for line in after if "#" in line)
        if (shown := value_in(comment)) is not None:
            yield source, value, shown


def value_in(comment: str) -> Any:
    """The value with which a comment begins; None if it begins with words.

    >>> value_in("0.5, and [1, 2]: in two steps"), value_in("29, although"), value_in("the first")
    ((0.5, [1, 2]), 29, None)
    """
    text = comment.replace(", and ", ", ").replace("…", "")
    for end in range(len(text), 0, -1):
        if not text[:end].rstrip().endswith(","):
            try:
                return eval(text[:end].strip(), SHOWN | {"__builtins__": {}})
            except (SyntaxError, NameError, TypeError):
                continue
    return None


def as_shown(value: Any, shown: Any) -> bool:
    """Whether a value is the one that is shown, with four decimals; of tensors, the numbers."""
    if isinstance(value, torch.Tensor):
        if isinstance(shown, tuple):  # a shape
            return value.shape == shown
        return torch.allclose(value.double(), torch.as_tensor(shown).double(), atol=1e-4)
    if isinstance(value, dict):
        return value.keys() == shown.keys() and all(as_shown(value[k], shown[k]) for k in shown)
    if isinstance(value, list | tuple):
        return len(value) == len(shown) and all(map(as_shown, value, shown))
    if isinstance(value, float):
        return value == pytest.approx(shown, abs=1e-4)
    return value == shown


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of a comment such as "x[0] is 7"
def test_examples_in_tasks_are_what_the_model_answers_give(assignment):
    shown = list(examples(assignment))
    assert shown
    assert [row for row in shown if not as_shown(*row[1:])] == []
