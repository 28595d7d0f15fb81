"""Prompts for tasks in the home, and the constraints that fit them.

Chapter: evaluation/environments-and-tools.
"""

from collections.abc import Sequence
from functools import cache

from course_pkg.common.arguments import require_integer
from course_pkg.studies.environments_and_tools.episodes import MOST_STEPS, Environment, EpisodeStep
from course_pkg.studies.environments_and_tools.home import (
    Home,
    action_pattern,
    admissible,
    describe,
    grammar,
)
from course_pkg.studies.environments_and_tools.home_tasks import HomeTask, draw_tasks

EXAMPLE_SEED = 141  # no task of it is among those of seed 0, which are asked
EXAMPLE_ORDER = ("move", "treat", "serve", "tidy", "switch")
FORMS = """\
Actions: go to ROOM; open CONTAINER; close CONTAINER; take OBJECT from PLACE; put OBJECT in \
CONTAINER; put OBJECT on SURFACE; switch on APPLIANCE; switch off APPLIANCE.

"""


@cache
def example_tasks() -> tuple[HomeTask, ...]:
    """Five tasks for prompts, one of each kind; they are not among those that are asked."""
    of_kind = {task.kind: task for task in draw_tasks(len(EXAMPLE_ORDER), EXAMPLE_SEED)}
    return tuple(of_kind[kind] for kind in EXAMPLE_ORDER)


def plan_prompt(task: HomeTask, examples: int) -> str:
    r"""A prompt that asks for the whole plan, after `examples` (0 to 5) solved tasks."""
    solved = []
    for example in _examples(examples):
        lines = [f"{number}. {action}" for number, action in enumerate(example.plan, start=1)]
        solved.append(_situation(example) + "Plan:\n" + "\n".join(lines) + "\n\n")
    return FORMS + "".join(solved) + _situation(task) + "Plan:\n1."


def step_prompt(task: HomeTask, steps: Sequence[EpisodeStep], examples: int) -> str:
    r"""A prompt that asks for the next action, after what happened so far."""
    solved = []
    for example in _examples(examples):
        environment = Environment(example)
        for action in example.plan:
            environment.step(str(action))
        solved.append(_situation(example) + _history(environment.steps) + "\n")
    return FORMS + "".join(solved) + _situation(task) + _history(steps) + "Action:"


def plan_pattern() -> str:
    """A regular expression of plans: up to 12 actions of the grammar, one a line, with numbers."""
    action = action_pattern(grammar())
    rest = "".join(rf"(\n{number}\. {action}" for number in range(2, MOST_STEPS + 1))
    return f" {action}{rest}{')?' * (MOST_STEPS - 1)}" + r"\n\n"


def step_pattern(home: Home, only_possible: bool) -> str:
    """A regular expression of one action: any of the grammar, or any that is possible now."""
    return f" {action_pattern(admissible(home) if only_possible else grammar())}" + r"\n"


def _examples(count: int) -> tuple[HomeTask, ...]:
    require_integer(count, "examples", least=0)
    tasks = example_tasks()
    if count > len(tasks):
        raise ValueError(f"examples is {count}: there are {len(tasks)}")
    return tasks[:count]


def _situation(task: HomeTask) -> str:
    return f"{describe(task.start)}\nTask: {task.text}\n"


def _history(steps: Sequence[EpisodeStep]) -> str:
    return "".join(f"Action: {step.text}\n{step.observation}\n" for step in steps)
