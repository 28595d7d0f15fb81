"""Policies without a model: the floor, the upper bound, and scripts with a defect.

A score needs both ends. The floor is what random actions reach, of the grammar or of those that are
possible now: whoever is told the possible actions reaches more by chance. The upper bound is a
script that follows a shortest plan, and reaches everything.

`slipping` is a world in which each step fails with some probability. Without feedback, a plan of k
steps then succeeds with p^k. A policy that looks and plans again only loses time: among n steps it
needs k that don't slip.

Chapter: evaluation/environments-and-tools.
"""

import math
from collections.abc import Sequence
from random import Random

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.studies.environments_and_tools.episode import (
    MOST_STEPS,
    Environment,
    Episode,
    Policy,
    Step,
)
from course_pkg.studies.environments_and_tools.home import Home
from course_pkg.studies.environments_and_tools.home_actions import admissible, grammar
from course_pkg.studies.environments_and_tools.home_tasks import HomeTask, shortest_plan


def random_policy(rng: Random, only_possible: bool) -> Policy:
    """A policy that takes any action of the grammar, or any that is possible now.

    >>> from course_pkg.studies.environments_and_tools.episode import run_episode
    >>> from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks
    >>> episode = run_episode(draw_tasks(1)[0], random_policy(Random(0), only_possible=True))
    >>> {step.error for step in episode.steps}
    {''}
    """

    def policy(task: HomeTask, home: Home, steps: Sequence[Step]) -> str:
        return str(rng.choice(admissible(home) if only_possible else grammar()))

    return policy


def replan(task: HomeTask, home: Home, steps: Sequence[Step]) -> str | None:
    """The upper bound: the first step of a shortest plan from here; None if there is none.

    >>> from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks
    >>> task = draw_tasks(1)[0]
    >>> replan(task, task.start, [])
    'go to bedroom'
    """
    plan = shortest_plan(home, task.goals)
    return str(plan[0]) if plan else None


def slipping(
    task: HomeTask, policy: Policy, p: float, rng: Random, limit: int = MOST_STEPS
) -> Episode:
    """An episode in which a step happens with probability p, and otherwise nothing does.

    A step that slips is recorded as an empty text. The policy sees the home as it is. Raises
    ValueError unless 0 < p < 1.

    >>> from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks
    >>> [step.text for step in slipping(draw_tasks(1)[0], replan, 0.5, Random(1)).steps]
    ['go to bedroom', '', '', 'switch on lamp']
    """
    require_between(p, "p", 0, 1)
    environment = Environment(task, limit)
    while not environment.is_over:
        text = policy(task, environment.home, environment.steps)
        if text is None:
            break
        environment.step(text if rng.random() < p else "")
    return environment.episode()


def chance_without_feedback(p: float, steps: int) -> float:
    """The probability that all steps of a plan succeed, p^k, if each does with probability p.

    Raises ValueError unless 0 < p < 1 and steps is an integer of at least 1.

    >>> round(chance_without_feedback(0.9, 8), 3)
    0.43
    """
    require_between(p, "p", 0, 1)
    require_integer(steps, "steps")
    return p**steps


def chance_with_feedback(p: float, steps: int, limit: int = MOST_STEPS) -> float:
    """The probability of at least `steps` successes in `limit` tries: failed steps are repeated.

    Raises ValueError unless 0 < p < 1, and both are integers of at least 1.
    Source: the binomial distribution.

    >>> round(chance_with_feedback(0.9, 8), 3)
    0.996
    """
    require_between(p, "p", 0, 1)
    require_integer(steps, "steps")
    require_integer(limit, "limit")
    tries = range(steps, limit + 1)
    return sum(math.comb(limit, k) * p**k * (1 - p) ** (limit - k) for k in tries)
