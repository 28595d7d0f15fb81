"""Calls of functions, and eleven harmless APIs that run here, such as a library and a calendar.

Nothing leaves the program: `send_message` writes into a list. Towns, people and books are invented.
Source: Li et al. 2023, API-Bank, on errors and on APIs that run.
"""

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from course_pkg.serving.constrained.automaton import build_automaton
from course_pkg.serving.constrained.expression import concat, literal
from course_pkg.serving.constrained.guide import Guide
from course_pkg.serving.constrained.json_schema import has_type, schema_expression
from course_pkg.serving.constrained.vocabulary import Vocabulary

ApiFunction = Callable[..., dict]


class CallError(ValueError):
    """A call that isn't executed. kind: "none", "unknown", "arguments" or "failed"."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Api:
    """A function that a model may call.

    Attributes:
        parameters: for each name its JSON Schema.
        run: a function of the state, a dict that it may change, and the arguments.
        optional: names that may be missing, with what is taken then.
    """

    name: str
    description: str
    parameters: Mapping[str, dict]
    run: ApiFunction
    optional: Mapping[str, Any] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """Name, parameters and description, in one line for a prompt."""
        names = [f"{name}?" if name in self.optional else name for name in self.parameters]
        return f"{self.name}({', '.join(names)}): {self.description}"


@dataclass(frozen=True)
class ApiCall:
    """The name of an API, and arguments by name."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return json.dumps({"name": self.name, "arguments": dict(self.arguments)})


def extract_call(text: str) -> ApiCall:
    """The first JSON object with a name and arguments in a text.

    >>> extract_call('Sure! {"name": "set_timer", "arguments": {"minutes": 5}} Done.').arguments
    {'minutes': 5}
    """
    decoder = json.JSONDecoder()
    for brace in re.finditer(r"\{", text):
        try:
            value, _ = decoder.raw_decode(text, brace.start())
        except (ValueError, RecursionError):  # not JSON, or nested too deeply
            continue
        is_call = isinstance(value.get("name"), str) and isinstance(value.get("arguments"), dict)
        if is_call:
            return ApiCall(value["name"], value["arguments"])
    message = f'there is no JSON object with "name" and "arguments" in {text!r:.60}'
    raise CallError("none", message)


def check_call(call: ApiCall, apis: Mapping[str, Api]) -> Api:
    """The API of a call. Raises CallError, which says what doesn't fit."""
    if call.name not in apis:
        raise CallError("unknown", f"there is no API {call.name!r:.40}; there are {list(apis)}")
    api = apis[call.name]
    for name in api.parameters:
        if name not in call.arguments and name not in api.optional:
            raise CallError("arguments", f"{api.name} needs the argument {name}")
    for name, value in call.arguments.items():
        if name not in api.parameters:
            raise CallError("arguments", f"{api.name} has no argument {name!r:.40}")
        if problem := _misfit(value, api.parameters[name]):
            raise CallError("arguments", f"{name} of {api.name} is {value!r:.40}: {problem}")
    return api


def call_schema(apis: Sequence[Api]) -> dict:
    """A JSON Schema of the texts of all calls that `check_call` accepts; optional ones may lack."""
    calls = []
    for api in apis:
        arguments = {
            "type": "object",
            "properties": dict(api.parameters),
            "required": [name for name in api.parameters if name not in api.optional],
        }
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": api.name}, "arguments": arguments},
                "required": ["name", "arguments"],
            }
        )
    return {"anyOf": calls}


def call_guide(apis: Sequence[Api], vocabulary: Vocabulary) -> Guide:
    """The constraint of texts that are a space, one call of these APIs, and a line break."""
    call = schema_expression(call_schema(apis))
    return Guide(build_automaton(concat(literal(b" "), call, literal(b"\n"))), vocabulary)


def _misfit(value: Any, schema: dict) -> str:
    """Why a value doesn't satisfy a parameter's schema; "" if it does."""
    if not has_type(value, schema["type"]):
        return f"expected {schema['type']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"expected one of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"expected the pattern {schema['pattern']}"
    if isinstance(value, str):
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", len(value))
        if not shortest <= len(value) <= longest:
            return f"expected {shortest} to {longest} characters"
    elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"expected {schema.get('minimum')} to {schema.get('maximum')}"
    return ""


METERS = {"m": 1.0, "km": 1000.0, "cm": 0.01, "mile": 1609.344, "foot": 0.3048}
TEXT = {"type": "string", "minLength": 1, "maxLength": 40}
DATE = {"type": "string", "pattern": "^2027-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"}
TIME = {"type": "string", "pattern": "^([01]?[0-9]|2[0-3]):[0-5][0-9]$"}
COUNT = {"type": "integer", "minimum": 1, "maximum": 999}
LENGTH = {"type": "integer", "minimum": 0, "maximum": 999999}
UNIT = {"type": "string", "enum": list(METERS)}


@dataclass(frozen=True)
class Outcome:
    """The results of calls, in order, and the state after them."""

    results: tuple[dict, ...]
    state: dict


_KNOWN: dict[str, Api] = {}


def known_apis() -> dict[str, Api]:
    """The eleven APIs, by name."""
    return _KNOWN


def run_calls(calls: Sequence[ApiCall], state: dict | None = None) -> Outcome:
    """Execute calls one after another on a copy of the state; None is the empty one."""
    state = copy.deepcopy(state or {})
    results = []
    for call in calls:
        api = check_call(call, known_apis())
        results.append(api.run(state, **{**api.optional, **call.arguments}))
    return Outcome(tuple(results), state)


def _api(
    description: str, optional: Mapping[str, Any] | None = None, **parameters: dict
) -> Callable[[ApiFunction], ApiFunction]:
    """Makes a function `_name` the API "name"."""

    def add(run: ApiFunction) -> ApiFunction:
        name = run.__name__.removeprefix("_")
        _KNOWN[name] = Api(name, description, parameters, run, optional or {})
        return run

    return add


@cache
def _tables() -> dict:
    file = resources.files("course_pkg") / "data/evaluation/api-tables.json"
    return json.loads(file.read_text("utf-8"))


def _key(text: str) -> str:
    """A text without differences in case, spaces and a period at the end."""
    return " ".join(text.lower().split()).rstrip(".")


def _look_up(table: str, what: str, name: str) -> dict:
    rows = {_key(key): row for key, row in _tables()[table].items()}
    if _key(name) not in rows:
        raise CallError("failed", f"there is no {what} {name!r}")
    return dict(rows[_key(name)])


def _known_id(table: str, column: str, what: str, name: str) -> str:
    ids = {_key(row[column]): row[column] for row in _tables()[table].values()}
    if _key(name) not in ids:
        raise CallError("failed", f"there is no {what} {name!r}")
    return ids[_key(name)]


@_api("look up a book's id and shelf.", title=TEXT)
def _find_book(state: dict, title: str) -> dict:
    return _look_up("books", "book", title)


@_api("reserve a book by its id for a member.", book_id=TEXT, member=TEXT)
def _reserve_book(state: dict, book_id: str, member: str) -> dict:
    book = _known_id("books", "book_id", "book with the id", book_id)
    line = state.setdefault("reservations", {}).setdefault(book, [])
    line.append(_key(member))
    return {"reserved": book, "place_in_line": len(line)}


@_api("look up a person's address.", name=TEXT)
def _find_contact(state: dict, name: str) -> dict:
    return _look_up("contacts", "contact", name)


@_api("send a text.", address=TEXT, text=TEXT)
def _send_message(state: dict, address: str, text: str) -> dict:
    _known_id("contacts", "address", "address", address)
    state.setdefault("sent", []).append([_key(address), _key(text)])
    return {"sent_to": _key(address)}


@_api("look up the train between two towns.", origin=TEXT, destination=TEXT)
def _find_train(state: dict, origin: str, destination: str) -> dict:
    return _look_up("trains", "train", f"{_key(origin)} to {_key(destination)}")


@_api("book a seat.", train=TEXT, passenger=TEXT)
def _book_seat(state: dict, train: str, passenger: str) -> dict:
    known = _known_id("trains", "train", "train", train)
    seats = state.setdefault("seats", {}).setdefault(known, [])
    seats.append(_key(passenger))
    return {"train": known, "seat": len(seats)}


@_api("add to the calendar.", title=TEXT, date=DATE, time=TIME)
def _add_event(state: dict, title: str, date: str, time: str) -> dict:
    event = [date, time.zfill(5), _key(title)]
    state.setdefault("events", []).append(event)
    return {"date": date, "time": event[1]}


@_api("list a day's events.", date=DATE)
def _list_events(state: dict, date: str) -> dict:
    added = [f"{time} {title}" for day, time, title in state.get("events", ()) if day == date]
    return {"events": sorted(_tables()["events"].get(date, []) + added)}


@_api("ring after some minutes.", {"label": "timer"}, minutes=COUNT, label=TEXT)
def _set_timer(state: dict, minutes: int, label: str) -> dict:
    state.setdefault("timers", []).append([minutes, _key(label)])
    return {"rings_in_minutes": minutes}


@_api("convert between m, km, cm, mile and foot.", value=LENGTH, from_unit=UNIT, to_unit=UNIT)
def _convert_length(state: dict, value: int, from_unit: str, to_unit: str) -> dict:
    return {"value": round(value * METERS[from_unit] / METERS[to_unit], 2), "unit": to_unit}


@_api("add to the shopping list.", {"quantity": 1}, item=TEXT, quantity=COUNT)
def _add_to_list(state: dict, item: str, quantity: int) -> dict:
    shopping = state.setdefault("shopping", {})
    shopping[_key(item)] = shopping.get(_key(item), 0) + quantity
    return {"item": _key(item), "quantity": shopping[_key(item)]}
