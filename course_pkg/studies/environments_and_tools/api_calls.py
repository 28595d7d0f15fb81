"""Calls of functions: read from a model's text, checked against a description, or made impossible.

A call has a name and arguments. In a text it is a JSON object with these two keys, and may stand
between other words; the first such object counts. What can be wrong has a kind: there is no call
("none"), no API of this name ("unknown"), or its arguments don't fit ("arguments"). A constraint
with `call_schema` excludes all three, so that only wrong values are left.

Parameters are described in JSON Schema, as in most APIs of models. Types are strict: "3" is not
a number. Source: Li et al. 2023, API-Bank, on errors. Chapter: evaluation/environments-and-tools.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_pkg.common.arguments import require_string
from course_pkg.serving.constrained.automaton import build_automaton
from course_pkg.serving.constrained.expression import concat, literal
from course_pkg.serving.constrained.guide import Guide
from course_pkg.serving.constrained.json_schema import schema_expression
from course_pkg.serving.constrained.schema_keywords import has_type
from course_pkg.serving.constrained.vocabulary import Vocabulary

Run = Callable[..., dict]


class CallError(ValueError):
    """A call that isn't executed. kind: "none", "unknown", "arguments" or "failed"."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Api:
    """A function that a model may call.

    parameters: for each name its JSON Schema. optional: names that may be missing, with what is
    taken then. run: a function of the state, a dict that it may change, and the arguments.
    """

    name: str
    description: str
    parameters: Mapping[str, dict]
    run: Run
    optional: Mapping[str, Any] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """Name, parameters and description, in one line for a prompt."""
        names = [f"{name}?" if name in self.optional else name for name in self.parameters]
        return f"{self.name}({', '.join(names)}): {self.description}"


@dataclass(frozen=True)
class ApiCall:
    """The name of an API, and arguments by name.

    >>> print(ApiCall("set_timer", {"minutes": 5}))
    {"name": "set_timer", "arguments": {"minutes": 5}}
    """

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return json.dumps({"name": self.name, "arguments": dict(self.arguments)})


def extract_call(text: str) -> ApiCall:
    """The first call in a text.

    Raises TypeError unless it is a string, CallError of the kind "none" if it contains no JSON
    object with a name and arguments.

    >>> extract_call('Sure! {"name": "set_timer", "arguments": {"minutes": 5}} Done.').arguments
    {'minutes': 5}
    >>> extract_call("set_timer(5)")
    Traceback (most recent call last):
    ...
    course_pkg.studies.environments_and_tools.api_calls.CallError: there is no JSON object with
    "name" and "arguments" in 'set_timer(5)'
    """
    require_string(text, "the model's text")
    decoder = json.JSONDecoder()
    for brace in re.finditer(r"\{", text):
        try:
            found, _ = decoder.raw_decode(text, brace.start())
        except (ValueError, RecursionError):  # not JSON, or nested too deeply
            continue
        is_call = isinstance(found.get("name"), str) and isinstance(found.get("arguments"), dict)
        if is_call:
            return ApiCall(found["name"], found["arguments"])
    message = f'there is no JSON object with "name" and "arguments" in {text!r:.60}'
    raise CallError("none", message)


def check_call(call: ApiCall, apis: Mapping[str, Api]) -> Api:
    """The API of a call, if its name and arguments fit.

    Raises CallError of the kind "unknown" or "arguments", which says what doesn't fit.
    """
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
    """A JSON Schema of the texts of all calls that `check_call` accepts; optional ones may lack.

    >>> timer = Api("set_timer", "Ring.", {"minutes": {"type": "integer"}}, run=dict)
    >>> call_schema([timer])["anyOf"][0]["properties"]["name"]
    {'const': 'set_timer'}
    """
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
    """The constraint of texts that are a space, one call of these APIs, and a line break.

    A model writes a space after "Call:", and the line break lets it end. What the guide admits,
    `extract_call` finds and `check_call` accepts.
    """
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
