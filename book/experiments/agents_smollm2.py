"""SmolLM2 acts: tasks in a small home, and calls of mock APIs, with and without constraints.

    python book/experiments/agents_smollm2.py            run what is missing of the record
    python book/experiments/agents_smollm2.py --confirm  after an edit: run one short row again

The model is SmolLM2-135M-Instruct in float32, which goes on with a text, greedily. Examples are
other tasks, with a shortest plan, and other dialogues.

"plan": 30 tasks in the home; the whole plan is written at once, freely, or as lines of the grammar.
"step": the same tasks, one action at a time, with what came of the earlier ones; freely, as any
action of the grammar, or as one that is possible now.
"calls": 42 dialogues with one or two calls; freely, or constrained by the schema of the APIs.
"replies": the reply after the calls of the solution, and their results.

A row has the texts alone: the pages and the tests execute them and compute the scores.
"""

from functools import cache

from record import main

from course_pkg.lm.load import load
from course_pkg.serving.constrained.guide import Guide, regex_guide
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams
from course_pkg.studies.environments_and_tools.api_dialogues import (
    call_prompt,
    load_dialogues,
    reply_prompt,
)
from course_pkg.studies.environments_and_tools.apis import call_guide, known_apis
from course_pkg.studies.environments_and_tools.episodes import (
    Environment,
    plan_pattern,
    plan_prompt,
    step_pattern,
    step_prompt,
)
from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks

DATA = ("api-tables.json", "api-dialogues.jsonl", "api-dialogues-examples.jsonl")
TASKS = 30
PLAN_TOKENS, STEP_TOKENS, CALL_TOKENS, REPLY_TOKENS = 100, 20, 64, 40
PROBE = {"kind": "calls", "examples": 0, "constraint": "schema"}
CONSTRAINTS = {
    "plan": ("free", "grammar"),
    "step": ("free", "grammar", "possible"),
    "calls": ("free", "schema"),
}
EXAMPLES = {"plan": (2, 0, 4), "step": (2,), "calls": (2, 0, 4)}
PLAN = [
    *(
        {"kind": kind, "examples": examples, "constraint": constraint}
        for kind in ("plan", "calls", "step")
        for examples in EXAMPLES[kind]
        for constraint in CONSTRAINTS[kind]
    ),
    {"kind": "replies", "examples": 2, "constraint": "free"},
]


class Writer:
    """The model, in an engine that writes for many prompts at once."""

    def __init__(self) -> None:
        self.engine = Engine(*load("smollm2-135m"), memory_bytes=1_500_000_000)
        self.call_guide = cache(self._call_guide)

    def write(
        self,
        prompts: list[str],
        most_tokens: int,
        stop: tuple[str, ...],
        guides: list[Guide | None] | None = None,
    ) -> list[str]:
        """What the model writes after each prompt; with a guide, a text that it allows."""
        guides = guides or [None] * len(prompts)
        params = [
            SamplingParams(
                max_tokens=None if guide else most_tokens,
                temperature=0,
                stop=() if guide else stop,
                guide=guide,
            )
            for guide in guides
        ]
        return [r.completions[0].text for r in self.engine.generate(prompts, params)]

    def pattern_guide(self, pattern: str) -> Guide:
        """The constraint of a regular expression."""
        return regex_guide(pattern, self.engine.vocabulary)

    def _call_guide(self, names: tuple[str, ...]) -> Guide:
        return call_guide([known_apis()[name] for name in names], self.engine.vocabulary)


def _plans(writer: Writer, key: dict) -> list[str]:
    tasks = draw_tasks(TASKS)
    guides = None
    if key["constraint"] == "grammar":
        guides = [writer.pattern_guide(plan_pattern())] * len(tasks)
    prompts = [plan_prompt(task, key["examples"]) for task in tasks]
    return writer.write(prompts, PLAN_TOKENS, ("\n\n",), guides)


def _steps(writer: Writer, key: dict) -> list[list[str]]:
    """For each task the actions that the model took."""
    environments = [Environment(task) for task in draw_tasks(TASKS)]
    while running := [each for each in environments if not each.is_over]:
        guides = None
        if key["constraint"] != "free":
            possible = key["constraint"] == "possible"
            guides = [writer.pattern_guide(step_pattern(e.home, possible)) for e in running]
        prompts = [step_prompt(e.task, e.steps, key["examples"]) for e in running]
        for each, text in zip(
            running, writer.write(prompts, STEP_TOKENS, ("\n",), guides), strict=True
        ):
            each.step(text.strip())
    return [[step.text for step in each.steps] for each in environments]


def _calls(writer: Writer, key: dict) -> list[list[str]]:
    """For each dialogue what the model wrote for its calls."""
    dialogues = load_dialogues()
    texts: list[list[str]] = [[] for _ in dialogues]
    while todo := [k for k, each in enumerate(dialogues) if len(texts[k]) < len(each.calls)]:
        guides = None
        if key["constraint"] == "schema":
            names = (tuple(api.name for api in dialogues[k].apis) for k in todo)
            guides = [writer.call_guide(each) for each in names]
        prompts = [call_prompt(dialogues[k], texts[k], key["examples"]) for k in todo]
        written = writer.write(prompts, CALL_TOKENS, ("\nResult:", "\nUser:"), guides)
        for k, text in zip(todo, written, strict=True):
            texts[k].append(text.strip())
    return texts


def measure(writer: Writer, key: dict) -> dict:
    """What a row of this kind records."""
    match key["kind"]:
        case "plan":
            return {"texts": _plans(writer, key)}
        case "step":
            return {"texts": _steps(writer, key)}
        case "calls":
            return {"texts": _calls(writer, key)}
    prompts = [reply_prompt(each, key["examples"]) for each in load_dialogues()]
    texts = writer.write(prompts, REPLY_TOKENS, ("\n",))
    return {"texts": [text.strip() for text in texts]}


if __name__ == "__main__":
    settings = {
        "model": "smollm2-135m",
        "tasks": TASKS,
        "plan_tokens": PLAN_TOKENS,
        "step_tokens": STEP_TOKENS,
        "call_tokens": CALL_TOKENS,
        "reply_tokens": REPLY_TOKENS,
    }
    data = [f"evaluation/{name}" for name in DATA]
    main(__file__, PLAN, Writer, measure, probe=PROBE, settings=settings, data=data)
