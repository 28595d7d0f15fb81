"""Tasks in the home: goals as conditions on the last state, drawn by a seed, with a shortest plan.

Goals as conditions are those of ALFRED (Shridhar et al. 2020) and BEHAVIOR (Srivastava et al.
2021).
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from course_pkg.common.arguments import require_integer
from course_pkg.studies.environments_and_tools.home import (
    FIXTURES,
    OBJECTS,
    ActionError,
    Home,
    HomeAction,
    draw_home,
    grammar,
    perform,
)

KINDS = ("switch", "move", "tidy", "treat", "serve")
WARMED = ("milk", "soup", "apple")
WASHED = ("shirt", "towel")
TIDY = {"fridge": WARMED, "wardrobe": WASHED, "cabinet": ("cup", "book", "letter", "towel")}
SHORTEST, LONGEST = 2, 8  # steps of a task's shortest plan


@dataclass(frozen=True)
class Goal:
    """A condition: "at" (an object at a place), "on", "off", "closed", "warm" or "clean".

    >>> print(Goal("at", "milk", "fridge"), Goal("warm", "soup"), sep="; ")
    put the milk in the fridge; warm the soup in the microwave
    """

    condition: str
    thing: str
    place: str | None = None

    def holds(self, home: Home) -> bool:
        match self.condition:
            case "at":
                return home.where(self.thing) == self.place
            case "on":
                return self.thing in home.running
            case "off":
                return self.thing not in home.running
            case "closed":
                return self.thing not in home.opened
        return (self.thing, self.condition) in home.treated

    def __str__(self) -> str:
        match self.condition:
            case "at":
                return f"put the {self.thing} {FIXTURES[self.place].preposition} the {self.place}"
            case "on" | "off":
                return f"switch {self.condition} the {self.thing}"
            case "closed":
                return f"make sure that the {self.thing} is closed"
            case "warm":
                return f"warm the {self.thing} in the microwave"
        return f"wash the {self.thing} in the washer"


@dataclass(frozen=True)
class HomeTask:
    """A home, goals, and one of the shortest plans."""

    id: str
    kind: str
    start: Home
    goals: tuple[Goal, ...]
    plan: tuple[HomeAction, ...]

    @property
    def text(self) -> str:
        """The goals in words."""
        words = ", and ".join(map(str, self.goals))
        return words[0].upper() + words[1:] + "."

    def satisfied(self, home: Home) -> int:
        """How many of the goals hold in a home."""
        return sum(goal.holds(home) for goal in self.goals)

    def is_done(self, home: Home) -> bool:
        """Whether all goals hold in a home."""
        return self.satisfied(home) == len(self.goals)


@lru_cache(maxsize=10_000)
def shortest_plan(home: Home, goals: tuple[Goal, ...]) -> tuple[HomeAction, ...] | None:
    """The first, in the order of the grammar, of the shortest plans; None if there is none.

    Breadth-first over the actions that name only what the goals are about: no other object is ever
    in the way.
    """
    actions = [action for action in grammar() if _is_relevant(action, home, goals)]
    came_from: dict[Home, tuple[Home, HomeAction] | None] = {home: None}
    queue = deque([home])
    while queue:
        here = queue.popleft()
        if all(goal.holds(here) for goal in goals):
            steps = []
            while (before := came_from[here]) is not None:
                here, action = before
                steps.append(action)
            return tuple(reversed(steps))
        for action in actions:
            try:
                there = perform(here, action)
            except ActionError:
                continue
            if there not in came_from:
                came_from[there] = here, action
                queue.append(there)
    return None


def draw_tasks(count: int = 30, seed: int = 0) -> list[HomeTask]:
    """Different tasks in homes of their own, about equally many of each kind, not yet fulfilled."""
    require_integer(count, "count")
    rng = Random(f"home tasks {seed}")
    tasks: list[HomeTask] = []
    while len(tasks) < count:
        kind = KINDS[len(tasks) % len(KINDS)]
        home = draw_home(rng)
        goals = _draw_goals(kind, home, rng)
        to_do = goals[:1] if kind == "tidy" else goals  # its door may be closed at the start
        if any(goal.holds(home) for goal in to_do):
            continue
        plan = shortest_plan(home, goals)
        is_new = all((goals, plan) != (other.goals, other.plan) for other in tasks)
        if is_new and plan is not None and SHORTEST <= len(plan) <= LONGEST:
            tasks.append(HomeTask(f"home-{seed}-{len(tasks):02}", kind, home, goals, plan))
    return tasks


def _draw_goals(kind: str, home: Home, rng: Random) -> tuple[Goal, ...]:
    surfaces = [name for name, fixture in FIXTURES.items() if fixture.is_surface]
    switched = rng.choice(("radio", "lamp"))
    switch = Goal("off" if switched in home.running else "on", switched)
    match kind:
        case "switch":
            door = Goal("closed", rng.choice(("fridge", "wardrobe", "cabinet")))
            return (rng.choice((switch, door)),)
        case "move":
            return (Goal("at", rng.choice(OBJECTS), rng.choice(surfaces)),)
        case "tidy":
            place = rng.choice(list(TIDY))
            return Goal("at", rng.choice(TIDY[place]), place), Goal("closed", place)
        case "treat":
            thing = rng.choice(WARMED + WASHED)
            return (Goal("warm" if thing in WARMED else "clean", thing),)
    return Goal("at", rng.choice(OBJECTS), rng.choice(surfaces)), switch


def _is_relevant(action: HomeAction, home: Home, goals: tuple[Goal, ...]) -> bool:
    """Whether an action names only what the goals are about."""
    machines = {fixture.effect: name for name, fixture in FIXTURES.items() if fixture.effect}
    things = {goal.thing for goal in goals if goal.thing in OBJECTS}
    places = {home.where(thing) for thing in things}
    places |= {goal.thing for goal in goals} | {goal.place for goal in goals}
    places |= {machines.get(goal.condition) for goal in goals}
    rooms = {fixture.room for name, fixture in FIXTURES.items() if name in places}
    names_known_things = action.thing is None or action.thing in things
    return names_known_things and action.place in places | rooms
