"""Scores of an episode: can its steps be executed, do they resemble a plan, did it reach the goal?

With the executed steps E of all steps N, the goals fulfilled G of M, the shortest plan's length L*:

    executable steps     E / N
    executable           1 if E = N: the whole plan                  (Huang et al. 2022)
    similarity           LCS(steps, plan) / max(N, L*)               (Puig et al. 2018)
    success              1 if G = M
    goal conditions      G / M
    path-weighted        success · L* / max(L*, N)                   (Shridhar et al. 2020)

None replaces another. The similarity compares with one plan, and a good plan may be another one. An
episode without steps has no executable step: 0. Over several tasks, ALFRED's code adds up goals and
weights tasks by their plan's length, which `alfred_summary` does too.

Sources: Huang et al. 2022, section 2.2; Shridhar et al. 2020, section 5.1 (the weights over tasks
are in its code only). Chapter: evaluation/environments-and-tools.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_pkg.common.arguments import require_list
from course_pkg.metrics.rouge.lcs import lcs_length
from course_pkg.studies.environments_and_tools.episode import Episode
from course_pkg.studies.environments_and_tools.home_actions import Action


@dataclass(frozen=True)
class EpisodeScore:
    """The scores of one episode, each from 0 to 1."""

    executable: float
    executable_steps: float
    similarity: float
    success: float
    goal_conditions: float
    path_weighted: float


def score_episode(episode: Episode) -> EpisodeScore:
    """All scores of an episode.

    >>> from course_pkg.studies.environments_and_tools.episode import run_plan
    >>> from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks
    >>> detour = ["go to kitchen", "go to bedroom", "switch on lamp"]
    >>> score = score_episode(run_plan(draw_tasks(1)[0], detour))
    >>> score.success, round(score.similarity, 2), round(score.path_weighted, 2)
    (1.0, 0.67, 0.67)
    """
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


def plan_similarity(steps: Sequence[Action | None], plan: Sequence[Action]) -> float:
    """The longest common subsequence of two plans, as a share of the longer one.

    steps: None for what isn't an action, which is like no step of the plan. Raises TypeError unless
    both are lists, ValueError if both are empty.
    Source: Puig et al. 2018; Huang et al. 2022, section 2.2.

    >>> plan = [Action("go", "bedroom"), Action("switch on", "lamp")]
    >>> plan_similarity(plan[1:], plan), plan_similarity([None, *plan, None], plan)
    (0.5, 0.5)
    """
    require_list(steps, "steps", "give the actions of an episode")
    require_list(plan, "plan", "give a task's plan")
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
    """Success per task, goals pooled over tasks, and path-weighted success with weights.

    Of one episode for each task. A task's weight is the length of its shortest plan, so long tasks
    count more. Raises TypeError unless it is a list, ValueError if it is empty.
    Source: the code of Shridhar et al. 2020, models/eval, `get_metrics`.

    >>> from course_pkg.studies.environments_and_tools.episode import run_plan
    >>> from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks
    >>> short, long = draw_tasks(2)
    >>> episodes = [run_plan(short, [str(action) for action in short.plan]), run_plan(long, [])]
    >>> alfred_summary(episodes)
    AlfredSummary(success=0.5, goal_conditions=0.5, path_weighted=0.3333333333333333)
    """
    require_list(episodes, "episodes", "give one episode for each task")
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
