"""Actions in the home: their grammar, their preconditions, and what they change.

A text becomes an action in two steps, each with an error of its own: it has the form of an action
("grammar"), and its names exist ("unknown"). Case, articles, and a period at the end don't matter.
An action whose precondition fails ("precondition") changes nothing.

    go to ROOM                                   you are elsewhere
    open CONTAINER, close CONTAINER              you are there; closed, not running; open
    take OBJECT from FIXTURE                     you are there; it is there; open; hand empty
    put OBJECT in CONTAINER, on SURFACE          you are there; open; you hold the object
    switch on APPLIANCE, switch off APPLIANCE    you are there; off, and closed if it can be; on

Source: the course's own, after the verb-object programs of VirtualHome (Puig et al. 2018).
Chapter: evaluation/environments-and-tools.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

from course_pkg.common.arguments import require_string
from course_pkg.studies.environments_and_tools.home import (
    FIXTURES,
    HAND,
    OBJECTS,
    ROOMS,
    Fixture,
    Home,
)

FORMS = {  # verb → its form, with the groups `thing` and `place`
    "go": re.compile(r"go to (?P<place>.+)"),
    "open": re.compile(r"open (?P<place>.+)"),
    "close": re.compile(r"close (?P<place>.+)"),
    "take": re.compile(r"take (?P<thing>.+) from (?P<place>.+)"),
    "put": re.compile(r"put (?P<thing>.+) (in|on) (?P<place>.+)"),
    "switch on": re.compile(r"switch on (?P<place>.+)"),
    "switch off": re.compile(r"switch off (?P<place>.+)"),
}


class ActionError(ValueError):
    """An action that isn't executed. kind: "grammar", "unknown" or "precondition"."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Action:
    """A verb, a place (a room or a fixture), and the object that is taken or put.

    >>> print(Action("put", "fridge", "milk"))
    put milk in fridge
    """

    verb: str
    place: str
    thing: str | None = None

    def __str__(self) -> str:
        match self.verb:
            case "go":
                return f"go to {self.place}"
            case "take":
                return f"take {self.thing} from {self.place}"
            case "put":
                return f"put {self.thing} {FIXTURES[self.place].preposition} {self.place}"
        return f"{self.verb} {self.place}"


def parse_action(text: str) -> Action:
    """The action that a text names.

    Raises TypeError unless it is a string; ActionError of the kind "grammar" if it has the form of
    no action, and "unknown" if it names a room, fixture or object that the home lacks.

    >>> parse_action("Take the milk from the fridge.")
    Action(verb='take', place='fridge', thing='milk')
    >>> parse_action("open the garage")
    Traceback (most recent call last):
    ...
    course_pkg.studies.environments_and_tools.home_actions.ActionError: there is no garage here
    """
    words = require_string(text, "an action").lower().strip().rstrip(".").split()
    plain = " ".join(word for word in words if word not in ("the", "a", "an"))
    for verb, form in FORMS.items():
        if found := form.fullmatch(plain):
            names = found.groupdict()
            thing = names.get("thing")
            places = ROOMS if verb == "go" else FIXTURES
            if thing is not None and thing not in OBJECTS:
                raise ActionError("unknown", f"there is no {thing} here")
            if names["place"] not in places:
                raise ActionError("unknown", f"there is no {names['place']} here")
            return Action(verb, names["place"], thing)
    raise ActionError("grammar", f"{text!r:.60} is not an action: begin with {', '.join(FORMS)}")


def perform(home: Home, action: Action) -> Home:
    """The home after an action.

    Raises ActionError of the kind "precondition", with the reason, if it can't be executed.

    >>> from random import Random
    >>> from course_pkg.studies.environments_and_tools.home import draw_home
    >>> home = draw_home(Random(0))
    >>> perform(home, Action("go", "bedroom")).room
    'bedroom'
    """
    if action.verb == "go":
        if home.room == action.place:
            raise ActionError("precondition", f"you are in the {home.room} already")
        return replace(home, room=action.place)
    fixture = FIXTURES[action.place]
    if fixture.room != home.room:
        raise ActionError("precondition", f"the {fixture.name} is not in the {home.room}")
    match action.verb:
        case "open" | "close":
            return _turn_door(home, fixture, action.verb)
        case "take":
            return _take(home, fixture, action.thing)
        case "put":
            return _put(home, fixture, action.thing)
    return _switch(home, fixture, action.verb == "switch on")


@cache
def grammar() -> tuple[Action, ...]:
    """All actions that have the form of one, with names of the right kind, in a fixed order.

    >>> len(grammar()), str(grammar()[0])
    (182, 'go to kitchen')
    """
    fixtures = list(FIXTURES.values())
    found = [Action("go", room) for room in ROOMS]
    for verb in ("open", "close"):
        found += [Action(verb, fixture.name) for fixture in fixtures if fixture.is_container]
    for verb in ("take", "put"):
        for thing in OBJECTS:
            places = (fixture.name for fixture in fixtures if fixture.holds_objects)
            found += [Action(verb, place, thing) for place in places]
    for verb in ("switch on", "switch off"):
        found += [Action(verb, fixture.name) for fixture in fixtures if fixture.is_appliance]
    return tuple(found)


def admissible(home: Home) -> list[Action]:
    """The actions of the grammar whose preconditions hold now; never empty."""
    found = []
    for action in grammar():
        try:
            perform(home, action)
        except ActionError:
            continue
        found.append(action)
    return found


def action_pattern(actions: tuple[Action, ...] | list[Action]) -> str:
    """A regular expression of exactly these actions, for constrained output.

    >>> action_pattern([Action("open", "fridge"), Action("go", "kitchen")])
    '(open fridge|go to kitchen)'
    """
    return f"({'|'.join(re.escape(str(action)).replace(chr(92) + ' ', ' ') for action in actions)})"


def _turn_door(home: Home, fixture: Fixture, verb: str) -> Home:
    name = fixture.name
    if not fixture.is_container:
        raise ActionError("precondition", f"the {name} has no door")
    if (name in home.opened) == (verb == "open"):
        state = "open" if verb == "open" else "closed"
        raise ActionError("precondition", f"the {name} is {state} already")
    if name in home.running:
        raise ActionError("precondition", f"the {name} is on: switch it off first")
    change = home.opened | {name} if verb == "open" else home.opened - {name}
    return replace(home, opened=change)


def _check_reach(home: Home, fixture: Fixture) -> None:
    if not fixture.holds_objects:
        raise ActionError("precondition", f"nothing can be in or on the {fixture.name}")
    if fixture.is_container and fixture.name not in home.opened:
        raise ActionError("precondition", f"the {fixture.name} is closed")


def _take(home: Home, fixture: Fixture, thing: str) -> Home:
    _check_reach(home, fixture)
    if home.where(thing) != fixture.name:
        raise ActionError("precondition", f"the {thing} is not there")
    if home.held is not None:
        raise ActionError("precondition", f"you hold the {home.held}: put it somewhere first")
    return home.moved(thing, HAND)


def _put(home: Home, fixture: Fixture, thing: str) -> Home:
    _check_reach(home, fixture)
    if home.held != thing:
        raise ActionError("precondition", f"you don't hold the {thing}")
    return home.moved(thing, fixture.name)


def _switch(home: Home, fixture: Fixture, on: bool) -> Home:
    name = fixture.name
    if not fixture.is_appliance:
        raise ActionError("precondition", f"the {name} has no switch")
    if (name in home.running) == on:
        raise ActionError("precondition", f"the {name} is {'on' if on else 'off'} already")
    if not on:
        return replace(home, running=home.running - {name})
    if name in home.opened:
        raise ActionError("precondition", f"the {name} is open: close it first")
    effects = {(thing, fixture.effect) for thing in home.inside(name) if fixture.effect}
    return replace(home, running=home.running | {name}, treated=home.treated | effects)
