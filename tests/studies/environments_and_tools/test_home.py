"""The home: each precondition, each effect, and what holds whatever happens."""

from collections import deque
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.studies.environments_and_tools.home import (
    FIXTURES,
    HAND,
    OBJECTS,
    ActionError,
    Home,
    HomeAction,
    admissible,
    describe,
    draw_home,
    grammar,
    parse_action,
    perform,
)
from course_pkg.studies.environments_and_tools.home_tasks import (
    KINDS,
    Goal,
    draw_tasks,
    shortest_plan,
)

PLACES = {"milk": "fridge", "soup": "counter", "apple": "table", "cup": "shelf", "book": "shelf"}
PLACES |= {"letter": "nightstand", "shirt": "bench", "towel": "cabinet"}
KITCHEN = Home("kitchen", tuple(PLACES[thing] for thing in OBJECTS))


def after(home: Home, *texts: str) -> Home:
    for text in texts:
        home = perform(home, parse_action(text))
    return home


def test_each_action_does_what_it_says():
    home = after(KITCHEN, "open fridge", "take milk from fridge")
    assert (home.held, home.where("milk"), home.opened) == ("milk", HAND, {"fridge"})
    home = after(home, "close fridge", "open microwave", "put milk in microwave", "close microwave")
    assert (home.held, home.where("milk"), home.opened) == (None, "microwave", frozenset())
    assert home.treated == frozenset()
    home = after(home, "switch on microwave")
    assert home.running == {"microwave"} and home.treated == {("milk", "warm")}
    home = after(home, "switch off microwave", "go to bedroom")
    assert (home.running, home.room) == (frozenset(), "bedroom")
    assert "microwave (closed, off; warm milk)" in describe(home)
    home = replace(KITCHEN.moved("shirt", "washer"), room="bathroom")
    assert after(home, "switch on washer").treated == {("shirt", "clean")}


HOLDING = KITCHEN.moved("soup", HAND)
OPEN = replace(KITCHEN, opened=frozenset({"fridge", "microwave"}))
RUNNING = replace(KITCHEN, running=frozenset({"microwave"}))


def test_each_precondition_is_checked_and_names_the_reason():
    for home, text, reason in (
        (KITCHEN, "go to kitchen", "already"),
        (KITCHEN, "open wardrobe", "not in the kitchen"),
        (KITCHEN, "open counter", "no door"),
        (OPEN, "open fridge", "open already"),
        (KITCHEN, "close fridge", "closed already"),
        (RUNNING, "open microwave", "switch it off first"),
        (KITCHEN, "take book from shelf", "not in the kitchen"),
        (KITCHEN, "take milk from fridge", "closed"),
        (KITCHEN, "take milk from counter", "not there"),
        (replace(OPEN, locations=HOLDING.locations), "take milk from fridge", "you hold the soup"),
        (replace(KITCHEN, room="living room"), "take book from radio", "nothing can be"),
        (HOLDING, "put soup in fridge", "closed"),
        (HOLDING, "put soup on table", "not in the kitchen"),
        (KITCHEN, "put soup on counter", "don't hold"),
        (KITCHEN, "switch on fridge", "no switch"),
        (RUNNING, "switch on microwave", "on already"),
        (OPEN, "switch on microwave", "close it first"),
        (KITCHEN, "switch off microwave", "off already"),
        (KITCHEN, "switch on lamp", "not in the kitchen"),
    ):
        with pytest.raises(ActionError, match=reason) as caught:
            perform(home, parse_action(text))
        assert caught.value.kind == "precondition"
        assert parse_action(text) not in admissible(home)


def test_what_is_not_an_action_has_another_error_than_an_unknown_name():
    for text, kind in (
        ("", "grammar"),
        ("wait", "grammar"),
        ("take milk", "grammar"),
        ("go to", "grammar"),
        ("first, go to kitchen", "grammar"),
        ("go to fridge", "unknown"),
        ("open garage", "unknown"),
        ("open kitchen", "unknown"),
        ("take coffee from fridge", "unknown"),
        ("put milk in bag", "unknown"),
    ):
        with pytest.raises(ActionError) as caught:
            parse_action(text)
        assert caught.value.kind == kind


def test_an_action_is_read_from_its_text_whatever_its_articles_and_case():
    assert [parse_action(str(action)) for action in grammar()] == list(grammar())
    assert len(set(grammar())) == len(grammar())
    assert parse_action(" Put the MILK on the fridge. ") == HomeAction("put", "fridge", "milk")
    with pytest.raises(TypeError, match="an action must be a string"):
        parse_action(None)


homes = st.integers(0, 10**6).map(lambda seed: draw_home(Random(seed)))


@given(homes, st.lists(st.sampled_from(grammar()), max_size=30))
@settings(max_examples=30)
def test_objects_are_in_one_place_and_a_failed_action_changes_nothing(home, actions):
    for action in actions:
        before = home
        try:
            home = perform(home, action)
        except ActionError:
            assert home == before
        else:
            assert home != before
        assert list(home.locations).count(HAND) <= 1
        for thing, place in zip(OBJECTS, home.locations, strict=True):
            assert place == HAND or FIXTURES[place].holds_objects
            assert describe(home).count(thing) == 1
        assert not home.opened & home.running
        assert all(FIXTURES[name].is_container for name in home.opened)
        assert all(FIXTURES[name].is_appliance for name in home.running)


def test_the_tasks_are_solved_by_their_plans_and_by_no_shorter_beginning():
    tasks = draw_tasks(30)
    assert len({task.id for task in tasks}) == 30
    assert [task.kind for task in tasks] == list(KINDS) * 6
    for task in tasks:
        home = task.start
        for action in task.plan:
            assert not task.is_done(home)
            home = perform(home, action)
        assert task.is_done(home)
        assert 2 <= len(task.plan) <= 8


def search_everything(home: Home, goals: tuple[Goal, ...]) -> int:
    """The length of a shortest plan, by trying all possible actions."""
    depth = {home: 0}
    queue = deque([home])
    while queue:
        here = queue.popleft()
        if all(goal.holds(here) for goal in goals):
            return depth[here]
        for action in admissible(here):
            there = perform(here, action)
            if there not in depth:
                depth[there] = depth[here] + 1
                queue.append(there)
    raise AssertionError


@pytest.mark.parametrize(
    "length", [2, *(pytest.param(k, marks=pytest.mark.exhaustive) for k in (3, 4))]
)
def test_a_search_over_all_actions_finds_no_shorter_plan(length):
    for task in draw_tasks(30):
        if len(task.plan) == length:
            assert search_everything(task.start, task.goals) == length


def test_tasks_depend_on_the_seed_alone_and_an_impossible_goal_has_no_plan():
    assert draw_tasks(5, 3) == draw_tasks(5, 3) != draw_tasks(5, 4)
    with pytest.raises(ValueError, match="count"):
        draw_tasks(0)
    assert shortest_plan(KITCHEN, (Goal("at", "milk", "radio"),)) is None
