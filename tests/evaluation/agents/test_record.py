"""What SmolLM2 wrote under constraints, in the record: nothing that they exclude."""

import pytest

from course_pkg.evaluation.agents import (
    draw_tasks,
    load_dialogues,
    plan_lines,
    run_plan,
    score_calls,
)
from course_pkg.experiments import load_experiment

RECORD = load_experiment("agents_smollm2")
TASKS = draw_tasks(RECORD.settings["tasks"])


def episodes(row):
    plans = row["texts"]
    if row["kind"] == "plan":
        plans = [plan_lines(f"1.{text}") for text in plans]
    return [run_plan(task, lines) for task, lines in zip(TASKS, plans, strict=True)]


@pytest.mark.parametrize("kind", ["plan", "step"])
def test_output_of_the_grammar_is_always_an_action_with_known_names(kind):
    for row in RECORD.select(kind=kind, constraint="grammar"):
        errors = {step.error for episode in episodes(row) for step in episode.steps}
        assert errors <= {"", "precondition"}


def test_possible_actions_are_always_executed():
    for row in RECORD.select(kind="step", constraint="possible"):
        assert {step.error for episode in episodes(row) for step in episode.steps} == {""}


def test_recorded_episodes_run_again_to_the_same_steps():
    for row in RECORD.select(kind="step"):
        assert [[step.text for step in each.steps] for each in episodes(row)] == row["texts"]
        assert {each.ended for each in episodes(row)} <= {"goal", "limit"}


def test_calls_under_the_schema_are_always_valid():
    rows = RECORD.select(kind="calls", constraint="schema")
    assert len(rows) == 3
    for row in rows:
        for dialogue, texts in zip(load_dialogues(), row["texts"], strict=True):
            assert score_calls(dialogue, texts).valid == 1
