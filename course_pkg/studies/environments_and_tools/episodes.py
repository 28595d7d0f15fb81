"""Episodes in the home: policies that act, prompts for models, and scores with both ends.

Sources: Shridhar et al. 2021 (ALFWorld), section 2; Huang et al. 2022, section 2.2; Shridhar et al.
2020 (ALFRED), section 5.1, and its code for weights over tasks.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from random import Random
from typing import Literal

from course_pkg.common.arguments import require_between, require_integer, require_list
from course_pkg.metrics.rouge.lcs import lcs_length
from course_pkg.studies.environments_and_tools.home import (
    ActionError,
    Home,
    HomeAction,
    action_pattern,
    admissible,
    describe,
    describe_room,
    grammar,
    parse_action,
    perform,
)
from course_pkg.studies.environments_and_tools.home_tasks import HomeTask, draw_tasks, shortest_plan

MOST_STEPS = 12
NUMBERED = re.compile(r"^\s*(step\s*)?\d+[.:)]\s*", re.IGNORECASE)


@dataclass(frozen=True)
class EpisodeStep:
    """A text that a policy gave, its action if it is one, what the policy sees then, and the error.

    error: "" if it was executed; otherwise "grammar", "unknown" or "precondition".
    """

    text: str
    action: HomeAction | None
    error: str
    observation: str


@dataclass(frozen=True)
class Episode:
    """A task, the steps, the home after the last one, and why it ended."""

    task: HomeTask
    steps: tuple[EpisodeStep, ...]
    final: Home
    ended: Literal["goal", "stopped", "limit"]


HomePolicy = Callable[[HomeTask, Home, Sequence[EpisodeStep]], str | None]


class Environment:
    """A home that takes one action after another for a task, until it is done or at its limit."""

    def __init__(self, task: HomeTask, limit: int = MOST_STEPS):
        require_integer(limit, "limit")
        self.task = task
        self.limit = limit
        self.home = task.start
        self.steps: list[EpisodeStep] = []

    @property
    def is_over(self) -> bool:
        """Whether all goals hold, or the steps are used up."""
        return self.task.is_done(self.home) or len(self.steps) == self.limit

    def step(self, text: str) -> EpisodeStep:
        """Take one action, in words."""
        if self.is_over:
            raise RuntimeError(
                f"over after {len(self.steps)} of {self.limit} steps: look at `is_over`"
            )
        action = None
        try:
            action = parse_action(text)
            after = perform(self.home, action)
        except ActionError as error:
            step = EpisodeStep(text, action, error.kind, f"Nothing happens: {error}.")
        else:
            step = EpisodeStep(text, action, "", _observe(after, action))
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


def run_episode(task: HomeTask, policy: HomePolicy) -> Episode:
    """Let a policy act, step by step, until all goals hold."""
    environment = Environment(task)
    while not environment.is_over:
        text = policy(task, environment.home, environment.steps)
        if text is None:
            break
        environment.step(text)
    return environment.episode()


def run_plan(task: HomeTask, lines: Sequence[str]) -> Episode:
    """Execute a plan line by line, whatever happens: planning without feedback."""
    require_list(lines, "lines", "split the plan with plan_lines")

    def next_line(task: HomeTask, home: Home, steps: Sequence[EpisodeStep]) -> str | None:
        return lines[len(steps)] if len(steps) < len(lines) else None

    return run_episode(task, next_line)


def plan_lines(text: str) -> list[str]:
    """The steps of a written plan: its lines up to the first empty one, without numbers."""
    lines = takewhile(str.strip, text.strip("\n").split("\n"))
    return [NUMBERED.sub("", line).strip() for line in lines]


def _observe(home: Home, action: HomeAction) -> str:
    if action.verb in ("go", "open"):
        return f"You see {describe_room(home, home.room)}"
    return "Done."


def random_policy(rng: Random, only_possible: bool) -> HomePolicy:
    """A policy that takes any action of the grammar, or any that is possible now."""

    def policy(task: HomeTask, home: Home, steps: Sequence[EpisodeStep]) -> str:
        return str(rng.choice(admissible(home) if only_possible else grammar()))

    return policy


def replan(task: HomeTask, home: Home, steps: Sequence[EpisodeStep]) -> str | None:
    """The upper bound: the first step of a shortest plan from here; None if there is none."""
    plan = shortest_plan(home, task.goals)
    return str(plan[0]) if plan else None


def slipping(task: HomeTask, policy: HomePolicy, p: float, rng: Random) -> Episode:
    """An episode in which a step happens with probability p, and otherwise nothing does."""
    require_between(p, "p", 0, 1)

    def slips(task: HomeTask, home: Home, steps: Sequence[EpisodeStep]) -> str | None:
        text = policy(task, home, steps)
        return text if text is None or rng.random() < p else ""

    return run_episode(task, slips)


def chance_without_feedback(p: float, steps: int) -> float:
    """The probability that all steps of a plan succeed, p^k, if each does with probability p."""
    require_between(p, "p", 0, 1)
    require_integer(steps, "steps")
    return p**steps


def chance_with_feedback(p: float, steps: int, limit: int = MOST_STEPS) -> float:
    """The probability of at least `steps` successes in `limit` tries: failed steps are repeated.

    >>> round(chance_with_feedback(0.9, 8), 3)
    0.996
    """
    require_between(p, "p", 0, 1)
    require_integer(steps, "steps")
    require_integer(limit, "limit")
    tries = range(steps, limit + 1)
    return sum(math.comb(limit, k) * p**k * (1 - p) ** (limit - k) for k in tries)


@dataclass(frozen=True)
class EpisodeScore:
    """The scores of one episode, each from 0 to 1.

    With the executed steps E of all steps N, goals G of M, and the shortest plan's length L*::

        executable steps     E / N
        executable           1 if E = N: the whole plan                  (Huang et al. 2022)
        similarity           LCS(steps, plan) / max(N, L*)               (Puig et al. 2018)
        success              1 if G = M
        goal conditions      G / M
        path-weighted        success · L* / max(L*, N)                   (Shridhar et al. 2020)
    """

    executable: float
    executable_steps: float
    similarity: float
    success: float
    goal_conditions: float
    path_weighted: float


def score_episode(episode: Episode) -> EpisodeScore:
    """All scores of an episode."""
    task = episode.task
    taken = len(episode.steps)
    done = sum(not step.error for step in episode.steps)
    success = float(task.is_done(episode.final))
    shortest = len(task.plan)
    return EpisodeScore(
        executable=float(taken > 0 and done == taken),
        executable_steps=done / taken if taken else 0.0,
        similarity=plan_similarity([step.action for step in episode.steps], task.plan),
        success=success,
        goal_conditions=task.satisfied(episode.final) / len(task.goals),
        path_weighted=success * shortest / max(shortest, taken),
    )


def plan_similarity(steps: Sequence[HomeAction | None], plan: Sequence[HomeAction]) -> float:
    """The longest common subsequence of two plans, as a share of the longer one.

    Args:
        steps: None for what isn't an action, which is like no step of the plan.
    """
    require_list(steps, "steps", "give the actions of an episode")
    longer = max(len(steps), len(plan))
    if not longer:
        raise ValueError("both plans are empty: give at least one step")
    return lcs_length(plan, steps) / longer


@dataclass(frozen=True)
class AlfredSummary:
    """Scores over tasks as ALFRED's leaderboard computes them, each from 0 to 1."""

    success: float
    goal_conditions: float
    path_weighted: float


def alfred_summary(episodes: Sequence[Episode]) -> AlfredSummary:
    """Success per task, goals pooled, and success weighted by the shortest plan's length."""
    if not episodes:
        raise ValueError("there are no episodes: give one for each task")
    scores = [score_episode(episode) for episode in episodes]
    weights = [len(episode.task.plan) for episode in episodes]
    weighted = sum(w * s.path_weighted for w, s in zip(weights, scores, strict=True))
    return AlfredSummary(
        success=sum(score.success for score in scores) / len(scores),
        goal_conditions=sum(e.task.satisfied(e.final) for e in episodes)
        / sum(len(e.task.goals) for e in episodes),
        path_weighted=weighted / sum(weights),
    )


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
        steps_of_example = run_plan(example, list(map(str, example.plan))).steps
        solved.append(_situation(example) + _history(steps_of_example) + "\n")
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
