"""A small home to act in: four rooms, their fixtures, eight objects, and what actions change.

A home is a value: an action returns another one. In the spirit of VirtualHome (Puig et al. 2018)
and ALFRED (Shridhar et al. 2020), without their data.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from course_pkg.common.arguments import require_string

ROOMS = ("kitchen", "living room", "bedroom", "bathroom")
HAND = "hand"  # the place of the object that the agent holds


@dataclass(frozen=True)
class Fixture:
    """A thing that stays where it is. effect: what it does, while on, to what is inside."""

    name: str
    room: str
    is_surface: bool = False
    is_container: bool = False
    is_appliance: bool = False
    effect: str | None = None

    @property
    def holds_objects(self) -> bool:
        """Whether objects can be in or on it."""
        return self.is_surface or self.is_container

    @property
    def preposition(self) -> str:
        """Where an object is that it holds: "on" a surface, "in" a container."""
        return "on" if self.is_surface else "in"


FIXTURES = {
    fixture.name: fixture
    for fixture in (
        Fixture("counter", "kitchen", is_surface=True),
        Fixture("fridge", "kitchen", is_container=True),
        Fixture("microwave", "kitchen", is_container=True, is_appliance=True, effect="warm"),
        Fixture("table", "living room", is_surface=True),
        Fixture("shelf", "living room", is_surface=True),
        Fixture("radio", "living room", is_appliance=True),
        Fixture("nightstand", "bedroom", is_surface=True),
        Fixture("wardrobe", "bedroom", is_container=True),
        Fixture("lamp", "bedroom", is_appliance=True),
        Fixture("bench", "bathroom", is_surface=True),
        Fixture("cabinet", "bathroom", is_container=True),
        Fixture("washer", "bathroom", is_container=True, is_appliance=True, effect="clean"),
    )
}
STARTS = {  # for each object, where it may be at the start
    "milk": ("fridge", "counter", "table"),
    "soup": ("fridge", "counter"),
    "apple": ("fridge", "counter", "table"),
    "cup": ("counter", "shelf", "nightstand"),
    "book": ("shelf", "table", "nightstand"),
    "letter": ("table", "shelf", "nightstand"),
    "shirt": ("wardrobe", "bench"),
    "towel": ("cabinet", "bench"),
}
OBJECTS = tuple(STARTS)


@dataclass(frozen=True)
class Home:
    """Where the agent and all objects are, which containers are open, and which appliances on.

    Attributes:
        locations: for each of OBJECTS the name of a fixture, or HAND.
        treated: what appliances did, as pairs such as ("milk", "warm").
    """

    room: str
    locations: tuple[str, ...]
    opened: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    treated: frozenset[tuple[str, str]] = frozenset()

    def where(self, thing: str) -> str:
        """The fixture that holds an object, or HAND."""
        return self.locations[OBJECTS.index(thing)]

    @property
    def held(self) -> str | None:
        """The object in the agent's hand; there is room for one."""
        return OBJECTS[self.locations.index(HAND)] if HAND in self.locations else None

    def inside(self, fixture: str) -> list[str]:
        """The objects in or on a fixture, in the order of OBJECTS."""
        pairs = zip(OBJECTS, self.locations, strict=True)
        return [thing for thing, place in pairs if place == fixture]

    def moved(self, thing: str, place: str) -> "Home":
        """The home with one object elsewhere."""
        locations = list(self.locations)
        locations[OBJECTS.index(thing)] = place
        return replace(self, locations=tuple(locations))


def draw_home(rng: Random) -> Home:
    """A random home: the hand empty, most containers closed, radio and lamp rarely on."""
    containers = [name for name, fixture in FIXTURES.items() if fixture.is_container]
    return Home(
        room=rng.choice(ROOMS),
        locations=tuple(rng.choice(STARTS[thing]) for thing in OBJECTS),
        opened=frozenset(name for name in containers if rng.random() < 0.2),
        running=frozenset(name for name in ("radio", "lamp") if rng.random() < 0.25),
    )


def describe_room(home: Home, room: str) -> str:
    """What is in a room, in one line: states of fixtures, and the objects in or on them.

    >>> describe_room(draw_home(Random(0)), "bedroom")
    'bedroom: nightstand (cup), wardrobe (closed), lamp (off).'
    """
    parts = []
    for fixture in FIXTURES.values():
        if fixture.room != room:
            continue
        states = []
        if fixture.is_container:
            states.append("open" if fixture.name in home.opened else "closed")
        if fixture.is_appliance:
            states.append("on" if fixture.name in home.running else "off")
        things = [_with_effects(home, thing) for thing in home.inside(fixture.name)]
        notes = "; ".join(", ".join(part) for part in (states, things) if part)
        parts.append(f"{fixture.name} ({notes})" if notes else fixture.name)
    return f"{room}: {', '.join(parts)}."


def describe(home: Home) -> str:
    """The whole home: a line for each room, and one for the agent."""
    held = home.held
    hand = f"You hold the {_with_effects(home, held)}." if held else "Your hand is empty."
    lines = [describe_room(home, room) for room in ROOMS]
    return "\n".join([*lines, f"You are in the {home.room}. {hand}"])


def _with_effects(home: Home, thing: str) -> str:
    effects = sorted(effect for other, effect in home.treated if other == thing)
    return " ".join([*effects, thing])


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
class HomeAction:
    """A verb, a place (a room or a fixture), and the object that is taken or put."""

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


def parse_action(text: str) -> HomeAction:
    """The action that a text names; case, articles and a period at the end don't matter.

    >>> parse_action("Take the milk from the fridge.")
    HomeAction(verb='take', place='fridge', thing='milk')
    """
    words = require_string(text, "an action").lower().strip().rstrip(".").split()
    plain = " ".join(word for word in words if word not in ("the", "a", "an"))
    for verb, form in FORMS.items():
        if matched := form.fullmatch(plain):
            names = matched.groupdict()
            thing = names.get("thing")
            places = ROOMS if verb == "go" else FIXTURES
            if thing is not None and thing not in OBJECTS:
                raise ActionError("unknown", f"there is no {thing} here")
            if names["place"] not in places:
                raise ActionError("unknown", f"there is no {names['place']} here")
            return HomeAction(verb, names["place"], thing)
    raise ActionError("grammar", f"{text!r:.60} is not an action: begin with {', '.join(FORMS)}")


def perform(home: Home, action: HomeAction) -> Home:
    """The home after an action. Raises ActionError, with the reason, if it can't be executed."""
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
def grammar() -> tuple[HomeAction, ...]:
    """All actions that have the form of one, with names of the right kind, in a fixed order."""
    fixtures = list(FIXTURES.values())
    actions = [HomeAction("go", room) for room in ROOMS]
    for verb in ("open", "close"):
        actions += [HomeAction(verb, fixture.name) for fixture in fixtures if fixture.is_container]
    for verb in ("take", "put"):
        for thing in OBJECTS:
            places = (fixture.name for fixture in fixtures if fixture.holds_objects)
            actions += [HomeAction(verb, place, thing) for place in places]
    for verb in ("switch on", "switch off"):
        actions += [HomeAction(verb, fixture.name) for fixture in fixtures if fixture.is_appliance]
    return tuple(actions)


def admissible(home: Home) -> list[HomeAction]:
    """The actions of the grammar whose preconditions hold now; never empty."""
    possible = []
    for action in grammar():
        try:
            perform(home, action)
        except ActionError:
            continue
        possible.append(action)
    return possible


def action_pattern(actions: tuple[HomeAction, ...] | list[HomeAction]) -> str:
    """A regular expression of exactly these actions, for constrained output.

    >>> action_pattern([HomeAction("open", "fridge"), HomeAction("go", "kitchen")])
    '(open fridge|go to kitchen)'
    """
    return f"({'|'.join(map(str, actions))})"


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
