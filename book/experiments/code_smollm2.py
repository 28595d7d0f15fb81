"""How many programs of SmolLM2-135M-Instruct pass their tests? HumanEval, and the course's items.

    python book/experiments/code_smollm2.py            run what is missing of the record
    python book/experiments/code_smollm2.py --confirm  after an edit: run one short row again

The model is in float32. Programs run in sandboxes, so this needs Linux. A row has the verdict on
each sample of each problem, and for greedy rows the programs and the details as well.

"items": the course's items after three examples (`few_shot_prompt`). "humaneval": HumanEval's
problems in one of two forms: "completion" continues the prompt, as the paper did; "chat" asks in
the model's chat template, and begins the answer with a code block, which the model fills. `every`
takes each n-th problem. Each problem has its own seed.
"constants": no model; for each problem, the verdicts on functions that always return one value, or
their first argument.
"""

from record import main

from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams
from course_pkg.studies.code_benchmarks.judge_process import ProgramResult
from course_pkg.studies.code_benchmarks.problems import (
    STOPS,
    CodeProblem,
    complete_program,
    extract_program,
    few_shot_prompt,
    load_code_items,
    load_humaneval,
)
from course_pkg.studies.code_benchmarks.program_runner import ProgramRunner

DATA = ("evaluation/code.jsonl", "evaluation/code-examples.jsonl")
MOST_TOKENS = 128
FENCE = "```"
ASKED = "Complete this Python function:\n\n```python\n{prompt}```"
BEGUN = "```python\n"
CONSTANTS = ("True", "False", "0", "[]", "''", "arguments[0]")


def row(problems: str, form: str, temperature: float, samples: int, every: int = 1) -> dict:
    """The key of a row."""
    key = {"problems": problems, "form": form, "temperature": temperature, "samples": samples}
    return key | {"every": every}


PROBE = row("items", "completion", 0, 1, every=10)
PLAN = [
    PROBE,
    row("items", "completion", 0, 1),
    row("humaneval", "chat", 0, 1),
    row("items", "completion", 0.8, 10),
    row("items", "completion", 0.2, 10),
    row("humaneval", "chat", 0.8, 8, every=4),
    row("humaneval", "completion", 0, 1, every=4),
    row("humaneval", "constants", 0, len(CONSTANTS)),
]


class Models:
    """The model in an engine, the problems, and the sandboxes, which end with this process."""

    def __init__(self) -> None:
        model, self.tokenizer = load("smollm2-135m")
        self.engine = Engine(model, self.tokenizer, blocks=1500, max_sequences=48)
        self.problems = {"items": load_code_items(), "humaneval": load_humaneval()}
        self.examples = load_code_items("examples")
        self.runner = ProgramRunner().__enter__()

    def prompt(self, problem: CodeProblem, form: str) -> str:
        """What the model continues."""
        if not problem.begins_program:
            return few_shot_prompt(problem, self.examples)
        if form == "completion":
            return problem.prompt
        turns = [{"role": "user", "content": ASKED.format(prompt=problem.prompt)}]
        chat = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return chat + BEGUN


def verdicts_by_problem(problems: list[CodeProblem], results: list[ProgramResult]) -> dict:
    """The problems' ids, and a list of verdicts for each."""
    verdicts = [str(result.verdict) for result in results]
    count = len(verdicts) // len(problems)
    return {
        "ids": [problem.id for problem in problems],
        "verdicts": [verdicts[at : at + count] for at in range(0, len(verdicts), count)],
    }


def measure(models: Models, key: dict) -> dict:
    """The verdicts of a row, by problem."""
    problems = models.problems[key["problems"]][:: key["every"]]
    if key["form"] == "constants":
        attempts = [
            (problem, f"def {problem.entry_point}(*arguments):\n    return {value}\n")
            for problem in problems
            for value in CONSTANTS
        ]
        return verdicts_by_problem(problems, models.runner.run_all(attempts))
    chat = key["form"] == "chat"
    params = [
        SamplingParams(
            max_tokens=MOST_TOKENS,
            temperature=key["temperature"],
            n=key["samples"],
            seed=number,
            stop=[f"\n{FENCE}"] if chat else STOPS,
        )
        for number in range(len(problems))
    ]
    prompts = [models.prompt(problem, key["form"]) for problem in problems]
    # The first request puts what all prompts share into the engine's cache.
    models.engine.generate(prompts[:1], SamplingParams(max_tokens=1, temperature=0))
    requests = models.engine.generate(prompts, params)
    attempts = []
    for problem, request in zip(problems, requests, strict=True):
        for completion in request.completions:
            text = completion.text
            program = (
                extract_program(problem, BEGUN + text) if chat else complete_program(problem, text)
            )
            attempts.append((problem, program))
    results = models.runner.run_all(attempts)
    tokens = [len(each.tokens) for request in requests for each in request.completions]
    found = verdicts_by_problem(problems, results) | {
        "cut_off": sum(
            each.finish_reason == "length" for request in requests for each in request.completions
        ),
        "tokens": sum(tokens),
    }
    if key["samples"] == 1:
        found["programs"] = [program for _, program in attempts]
        found["details"] = [result.detail for result in results]
    return found


if __name__ == "__main__":
    settings = {
        "model": "smollm2-135m",
        "max_tokens": MOST_TOKENS,
        "stops": list(STOPS),
        "asked": ASKED,
        "begun": BEGUN,
        "constants": list(CONSTANTS),
    }
    main(__file__, PLAN, Models, measure, probe=PROBE, settings=settings, data=DATA)
