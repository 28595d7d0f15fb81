"""Episodes and their scores: both ends of each scale, and how scripts with a defect score."""

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.studies.environments_and_tools.episodes import (
    Environment,
    alfred_summary,
    chance_with_feedback,
    chance_without_feedback,
    plan_lines,
    plan_pattern,
    plan_prompt,
    plan_similarity,
    random_policy,
    replan,
    run_episode,
    run_plan,
    score_episode,
    slipping,
    step_pattern,
    step_prompt,
)
from course_pkg.studies.environments_and_tools.home import HomeAction, grammar
from course_pkg.studies.environments_and_tools.home_tasks import draw_tasks

TASKS = draw_tasks(30)
LONG = max(TASKS, key=lambda task: len(task.plan))  # 8 steps


def words(task):
    return [str(action) for action in task.plan]


def test_the_scripted_policy_and_the_plans_score_100_percent():
    for task in TASKS:
        for episode in (run_episode(task, replan), run_plan(task, words(task))):
            score = score_episode(episode)
            assert set(vars(score).values()) == {1.0}
            assert episode.ended == "goal" and len(episode.steps) == len(task.plan)


def test_scripts_with_a_defect_have_the_scores_worked_by_hand():
    score = score_episode(run_plan(LONG, words(LONG)[:-1]))
    assert (score.executable, score.success, score.path_weighted) == (1, 0, 0)
    assert score.similarity == 7 / 8
    detour = ["go to kitchen", "go to bedroom", "go to living room", *words(LONG)]
    score = score_episode(run_plan(LONG, detour))
    assert (score.executable, score.success) == (1, 1)
    assert score.path_weighted == score.similarity == 8 / 11
    serve = next(t for t in TASKS if t.text.startswith("Put the cup on the counter, and switch on"))
    assert words(serve)[:2] == ["go to living room", "switch on radio"]
    other = [*words(serve)[2:], *words(serve)[:2]]
    score = score_episode(run_plan(serve, other))
    assert (score.executable, score.success, score.path_weighted) == (1, 1, 1)
    assert score.similarity == 4 / 6
    tidy = next(task for task in TASKS if "fridge is closed" in task.text)
    score = score_episode(run_plan(tidy, []))
    assert (score.goal_conditions, score.success) == (0.5, 0)
    assert (score.executable, score.executable_steps, score.similarity) == (0, 0, 0)


def test_a_failed_step_does_not_stop_a_plan_and_counts_as_a_step():
    first, second = words(TASKS[0])
    episode = run_plan(TASKS[0], [first, "open garage", "take milk from fridge", "???", second])
    assert [step.error for step in episode.steps] == ["", "unknown", "precondition", "grammar", ""]
    score = score_episode(episode)
    assert (score.executable, score.executable_steps, score.success) == (0, 2 / 5, 1)
    assert score.path_weighted == 2 / 5


def test_an_episode_ends_at_its_limit_and_observations_say_what_happened():
    environment = Environment(TASKS[0], limit=1)
    environment.step("wait")
    assert environment.is_over and environment.episode().ended == "limit"
    with pytest.raises(RuntimeError, match="over after 1 of 1 steps"):
        environment.step("wait")
    with pytest.raises(ValueError, match="limit"):
        Environment(TASKS[0], limit=0)
    environment = Environment(TASKS[0])
    assert environment.step("go to bedroom").observation.startswith("You see bedroom: ")
    assert environment.step("go to bedroom").observation == (
        "Nothing happens: you are in the bedroom already."
    )


actions = st.lists(st.sampled_from(grammar()), min_size=1, max_size=8)


@given(actions, actions)
@settings(max_examples=50, deadline=None)
def test_similarity_is_symmetric_and_1_for_equal_plans_only(steps, plan):
    value = plan_similarity(steps, plan)
    assert 0 <= value <= 1
    assert value == plan_similarity(plan, steps)
    assert (value == 1) == (steps == plan)


def test_alfreds_summary_weights_tasks_by_length_and_pools_goals():
    short = TASKS[0]
    long = LONG
    episodes = [run_plan(short, words(short)), run_plan(long, [])]
    summary = alfred_summary(episodes)
    assert summary.success == 0.5
    assert summary.path_weighted == pytest.approx(2 / 10)
    tidy = next(task for task in TASKS if "fridge is closed" in task.text)
    assert alfred_summary([episodes[0], run_plan(tidy, [])]).goal_conditions == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="no episodes"):
        alfred_summary([])


def test_random_actions_that_are_possible_are_executable_and_mostly_fail():
    runs = {}
    for possible in (True, False):
        policy = random_policy(Random(5), possible)
        runs[possible] = [score_episode(run_episode(task, policy)) for task in TASKS]
    assert all(score.executable == 1 for score in runs[True])
    means = {key: sum(s.executable_steps for s in scores) / 30 for key, scores in runs.items()}
    assert means[False] < 0.2
    assert sum(score.success for score in runs[True]) < 10


@pytest.mark.parametrize(("p", "steps"), [(0.9, 8), (0.7, 2)])
def test_without_feedback_success_is_p_to_the_k_and_with_feedback_it_is_binomial(p, steps):
    task = next(task for task in TASKS if len(task.plan) == steps)
    rng = Random(0)
    trials = 300

    def blind(task, home, taken):
        return words(task)[len(taken)] if len(taken) < len(task.plan) else None

    for policy, expected in (
        (blind, chance_without_feedback(p, steps)),
        (replan, chance_with_feedback(p, steps)),
    ):
        won = sum(slipping(task, policy, p, rng).ended == "goal" for _ in range(trials))
        error = (expected * (1 - expected) / trials) ** 0.5
        assert abs(won / trials - expected) <= 4 * error + 1e-9


def test_chances_and_similarity_have_limits_and_check_their_arguments():
    assert chance_with_feedback(0.6, 3, limit=3) == pytest.approx(chance_without_feedback(0.6, 3))
    assert chance_with_feedback(0.6, 4, limit=3) == 0
    for p in (0, 1, 1.5):
        with pytest.raises(ValueError, match="p must be"):
            chance_without_feedback(p, 2)
    with pytest.raises(ValueError, match="both plans are empty"):
        plan_similarity([], [])
    with pytest.raises(TypeError, match="steps must be a list"):
        plan_similarity("go to kitchen", [HomeAction("go", "kitchen")])


def test_the_patterns_fit_the_prompts_and_lines_of_a_plan_lose_their_numbers():
    plan = re.compile(plan_pattern())
    for task in (TASKS[0], LONG):
        prompt = plan_prompt(task, 2)
        solution = "\n".join(f"{k}. {a}" for k, a in enumerate(task.plan, start=1))
        assert prompt.endswith("\n1.")
        assert plan.fullmatch(f"{solution}\n\n".removeprefix("1."))
        assert re.fullmatch(step_pattern(task.start, True), f" {task.plan[0]}\n")
    assert not re.fullmatch(step_pattern(LONG.start, True), " take shirt from wardrobe\n")
    assert re.fullmatch(step_pattern(LONG.start, False), " take shirt from wardrobe\n")
    text = "1. go to kitchen\nStep 2: open fridge\n3) close fridge\n\nTask: another"
    assert plan_lines(text) == ["go to kitchen", "open fridge", "close fridge"]
    assert plan_lines("") == []


def test_prompts_show_as_many_examples_as_asked_what_happened_and_no_solution():
    for count in (0, 1, 5):
        prompt = plan_prompt(LONG, count)
        assert prompt.count("Task:") == prompt.count("Plan:") == count + 1
        assert step_prompt(LONG, [], count).count("Task:") == count + 1
    assert str(LONG.plan[3]) not in plan_prompt(LONG, 0)
    with pytest.raises(ValueError, match="there are 5"):
        plan_prompt(LONG, 6)
    environment = Environment(LONG)
    environment.step("go to kitchen")
    environment.step("open garage")
    ending = step_prompt(LONG, environment.steps, 0).split("Task: ")[1]
    assert "Action: open garage\nNothing happens: there is no garage here.\nAction:" in ending
