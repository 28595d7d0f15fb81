"""An episode: a policy acts in the home until the goals hold, it stops, or its steps are used up.

A policy is a function of the task, the home as it is now, and the steps so far. It returns the next
action as text, or None to stop. A plan without feedback is a policy too: it was written before the
first step, and looks at nothing.

Every text counts as a step, executed or not: what isn't an action, names something unknown, or has
a precondition that fails changes nothing, and its reason is the observation. The episode ends as
soon as all goals hold (as in ALFWorld), so no policy has to notice that it is done.

Source: ALFWorld (Shridhar et al. 2021), section 2, for the form of the interaction.
Chapter: evaluation/environments-and-tools.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from course_pkg.common.arguments import require_integer, require_list
from course_pkg.studies.environments_and_tools.home import Home, describe_room
from course_pkg.studies.environments_and_tools.home_actions import (
    Action,
    ActionError,
    parse_action,
    perform,
)
from course_pkg.studies.environments_and_tools.home_tasks import HomeTask

MOST_STEPS = 12
NUMBERED = re.compile(r"^\s*(step\s*)?\d+[.:)]\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Step:
    """A text that a policy gave, and what came of it.

    action: None if the text is none. error: "" if it was executed; otherwise "grammar", "unknown"
    or "precondition". observation: what the policy sees after it.
    """

    text: str
    action: Action | None
    error: str
    observation: str


@dataclass(frozen=True)
class Episode:
    """A task, the steps, the home after the last one, and why it ended.

    ended: "goal" (all goals hold), "stopped" (by the policy) or "limit".
    """

    task: HomeTask
    steps: tuple[Step, ...]
    final: Home
    ended: Literal["goal", "stopped", "limit"]


Policy = Callable[[HomeTask, Home, Sequence[Step]], str | None]


class Environment:
    """A home that takes one action after another for a task.

    limit: the most steps. Raises ValueError unless it is an integer of at least 1.

    >>> from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks
    >>> environment = Environment(draw_tasks(1)[0])
    >>> environment.step("open the garage").error, environment.step("switch on lamp").observation
    ('unknown', 'Nothing happens: the lamp is not in the living room.')
    """

    def __init__(self, task: HomeTask, limit: int = MOST_STEPS):
        require_integer(limit, "limit")
        self.task = task
        self.limit = limit
        self.home = task.start
        self.steps: list[Step] = []

    @property
    def is_over(self) -> bool:
        """Whether all goals hold, or the steps are used up."""
        return self.task.is_done(self.home) or len(self.steps) == self.limit

    def step(self, text: str) -> Step:
        """Take one action, in words.

        Raises TypeError unless it is a string, RuntimeError if the episode is over.
        """
        if self.is_over:
            raise RuntimeError(
                f"the episode is over after {len(self.steps)} of {self.limit} steps: look at "
                "`is_over` before each step"
            )
        action = None
        try:
            action = parse_action(text)
            after = perform(self.home, action)
        except ActionError as error:
            step = Step(text, action, error.kind, f"Nothing happens: {error}.")
        else:
            step = Step(text, action, "", _observe(after, action))
            self.home = after
        self.steps.append(step)
        return step

    def episode(self) -> Episode:
        """What has happened so far, as a value."""
        if self.task.is_done(self.home):
            ended = "goal"
        else:
            ended = "limit" if len(self.steps) == self.limit else "stopped"
        return Episode(self.task, tuple(self.steps), self.home, ended)


def run_episode(task: HomeTask, policy: Policy, limit: int = MOST_STEPS) -> Episode:
    """Let a policy act, step by step.

    >>> from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks
    >>> run_episode(draw_tasks(1)[0], lambda task, home, steps: None).ended
    'stopped'
    """
    environment = Environment(task, limit)
    while not environment.is_over:
        text = policy(task, environment.home, environment.steps)
        if text is None:
            break
        environment.step(text)
    return environment.episode()


def run_plan(task: HomeTask, lines: Sequence[str], limit: int = MOST_STEPS) -> Episode:
    """Execute a plan line by line, whatever happens: planning without feedback.

    Raises TypeError unless lines is a list.

    >>> from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks
    >>> task = draw_tasks(1)[0]
    >>> run_plan(task, ["go to bedroom", "switch on lamp", "open wardrobe"]).ended
    'goal'
    """
    require_list(lines, "lines", "split the plan with plan_lines")

    def next_line(task: HomeTask, home: Home, steps: Sequence[Step]) -> str | None:
        return lines[len(steps)] if len(steps) < len(lines) else None

    return run_episode(task, next_line, limit)


def plan_lines(text: str) -> list[str]:
    """The steps of a written plan: its lines up to the first empty one, without numbers.

    >>> plan_lines("1. go to kitchen\\n2. open fridge\\n\\nTask: another")
    ['go to kitchen', 'open fridge']
    """
    lines = []
    for line in text.strip("\n").split("\n"):
        if not line.strip():
            break
        lines.append(NUMBERED.sub("", line).strip())
    return lines


def _observe(home: Home, action: Action) -> str:
    if action.verb in ("go", "open"):
        return f"You see {describe_room(home, home.room)}"
    return "Done."
