"""A small home to act in: four rooms, their fixtures, eight objects, and where everything is.

A fixture can be a surface, a container, an appliance, or a container that is an appliance too. The
microwave makes what is inside warm, the washer makes it clean. The home is seen whole: `describe`
says where everything is, also behind closed doors. What actions change is in `home_actions`.

A home is a value: an action returns another one. Its locations have one entry for each object, so
no object can be in two places or in none.

In the spirit of VirtualHome (Puig et al. 2018) and ALFRED (Shridhar et al. 2020), without their
data, images or simulators. Chapter: evaluation/environments-and-tools.
"""

from dataclasses import dataclass, replace
from random import Random

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

    locations: for each of OBJECTS the name of a fixture, or HAND. treated: what appliances did, as
    pairs such as ("milk", "warm").
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
    """A random home: the hand empty, most containers closed, radio and lamp rarely on.

    >>> draw_home(Random(0)).room
    'bathroom'
    """
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
