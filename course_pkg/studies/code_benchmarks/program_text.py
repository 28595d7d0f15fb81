"""From a problem to a prompt, and from what a model wrote to a program.

A base model that continues a prompt goes on after the function, with another function, a test or a
main program. Generation stops at the first of `STOPS`, which begin a line that isn't part of the
function. A chat model writes sentences around its code; the code is in a fenced block.

Every rule here changes scores. State which one was used. Nothing here repairs code: a program
that is cut off, or indented wrongly, fails.

Source: Chen et al. 2021, section 3.2 (the stop sequences). Chapter: evaluation/code-benchmarks.
"""

import re
from collections.abc import Sequence

from course_pkg.common.arguments import require_string
from course_pkg.studies.code_benchmarks.problems import CodeProblem

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
FENCE = re.compile(r"^( *)```[^\n]*\n(.*?)(?:^ *```|\Z)", re.MULTILINE | re.DOTALL)


def few_shot_prompt(problem: CodeProblem, examples: Sequence[CodeProblem] = ()) -> str:
    """A prompt that a model continues with the rest of a function.

    The task and its tests are comments, which show how the function is called; then its definition
    begins. The examples have the same form, with their solutions.

    >>> from course_pkg.studies.code_benchmarks.problems import load_code_items
    >>> print(few_shot_prompt(load_code_items()[0]))
    # Write a function double that returns twice a number.
    # assert double(3) == 6
    # assert double(0) == 0
    # assert double(-4) == -8
    # assert double(1.5) == 3.0
    def double(
    """
    shown = "".join(f"{_as_comments(each)}{each.solution}\n" for each in examples)
    return shown + _as_comments(problem) + program_start(problem)


def _as_comments(problem: CodeProblem) -> str:
    return "".join(f"# {line}\n" for line in (problem.prompt, *problem.checks))


def program_start(problem: CodeProblem) -> str:
    """What the prompt has of the program: all of it, or `def` with the function's name."""
    return problem.prompt if problem.begins_program else f"def {problem.entry_point}("


def cut_at_stop(text: str, stops: Sequence[str] = STOPS) -> str:
    """The text before the first stop sequence in it; all of it if there is none.

    >>> cut_at_stop("    return x + y\\n\\ndef test():\\n    pass")
    '    return x + y\\n'
    """
    require_string(text, "text")
    places = [text.find(stop) for stop in stops]
    return text[: min((place for place in places if place >= 0), default=len(text))]


def complete_program(problem: CodeProblem, completion: str) -> str:
    """The program of a completion: what the prompt has of it, and what the model wrote after it.

    The completion is cut at the first stop sequence.

    >>> from course_pkg.studies.code_benchmarks.problems import load_code_items
    >>> double = load_code_items()[0]
    >>> complete_program(double, "x):\\n    return x + x\\n\\nprint(double(2))")
    'def double(x):\\n    return x + x\\n'
    """
    return program_start(problem) + cut_at_stop(completion)


def extract_program(problem: CodeProblem, answer: str) -> str:
    """The program in the answer of a chat model.

    The first fenced block that defines the function; without one, the first fenced block; without
    any, the whole answer. A block in a list loses the spaces before its fence. If the function
    isn't defined there, and the prompt begins it, the code counts as its body. What a prompt has
    before the function (imports, other functions) is put before code that defines it.

    >>> from course_pkg.studies.code_benchmarks.problems import load_humaneval
    >>> add = load_humaneval()[53]
    >>> extract_program(add, "Here:\\n```python\\ndef add(x, y):\\n    return x + y\\n```\\nDone.")
    '\\n\\ndef add(x, y):\\n    return x + y\\n'
    """
    require_string(answer, "answer")
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
