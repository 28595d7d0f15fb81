"""JSON Schema to the expression of the texts that satisfy it, for a stated subset.

Supported: type (one or a list), enum, const, anyOf, $ref to a place in the same schema without
recursion; properties, required, additionalProperties: false; items, minItems, maxItems; minimum and
maximum of integers; minLength, maxLength and pattern, also together. Every other keyword is an
error with its path, apart from those that only describe: a constraint that ignores a keyword looks
satisfied and isn't. The pattern's syntax is that of `regex`.

The texts are fewer than the schema allows, in five ways: properties come in the order of the
schema; an object with `properties` has no others; one way of writing each string (`json_text`);
bounded numbers and white space; at most max_depth arrays and objects inside each other where the
schema allows any value.

Source: JSON Schema, draft 2020-12, Core and Validation.
"""

import math
from typing import Any
from urllib.parse import unquote

from course_pkg.common.arguments import require_integer
from course_pkg.serving.constrained.characters import ANY
from course_pkg.serving.constrained.expression import (
    Expression,
    alternate,
    intersect,
    literal,
    repeat,
)
from course_pkg.serving.constrained.json_text import (
    NUMBER,
    JsonTexts,
    Member,
    character,
    integer,
    string,
)
from course_pkg.serving.constrained.regex import RegexError, search

ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly"}
ANNOTATIONS |= {"writeOnly", "$comment", "$schema", "$defs", "definitions"}
KEYWORDS: dict[str, set[str]] = {  # of each type
    "string": {"minLength", "maxLength", "pattern"},
    "integer": {"minimum", "maximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
PYTHON_TYPES = {"string": str, "number": int | float, "array": list, "object": dict}


class SchemaError(ValueError):
    """A schema is malformed, or uses what is not supported. path: where, as a JSON Pointer."""

    def __init__(self, problem: str, path: str):
        super().__init__(f"{problem} (at {path} of the schema)")
        self.path = path


def has_type(value: Any, name: str) -> bool:
    """Whether a JSON value has a type by its JSON Schema name."""
    if name == "null":
        return value is None
    if isinstance(value, bool) or name == "boolean":
        return isinstance(value, bool) and name == "boolean"
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, PYTHON_TYPES[name])


def types_of(schema: dict, path: str) -> list[str]:
    """The types that a schema names, [] if it names none."""
    if "type" not in schema:
        return []
    types = schema["type"]
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or not types or not all(t in list(KEYWORDS) for t in types):
        raise SchemaError(
            f"type is {schema['type']!r:.80}: expected one of {', '.join(KEYWORDS)}, or a list of "
            "them",
            path,
        )
    return types


def check_only(keywords: set[str], allowed: set[str], where: str, path: str) -> None:
    """Raise SchemaError for a keyword that is not allowed; where: "beside …"."""
    for keyword in sorted(keywords - allowed):
        raise SchemaError(f"the keyword {keyword} is not supported {where}", path)


def check_keywords(keywords: set[str], types: list[str], path: str) -> None:
    """Raise SchemaError unless each keyword is supported for one of the types."""
    known = set().union(*KEYWORDS.values())
    for keyword in sorted(keywords - {"type"}):
        if keyword not in known:
            raise SchemaError(f"the keyword {keyword} is not supported", path)
        if not types:
            raise SchemaError(f"the keyword {keyword} needs a type beside it", path)
        fits = [name for name in KEYWORDS if keyword in KEYWORDS[name]]
        if not set(fits) & set(types) or (fits == ["integer"] and "number" in types):
            raise SchemaError(
                f"the keyword {keyword} is supported for the type {' or '.join(fits)} only, the "
                f"type here is {' or '.join(types)}",
                path,
            )


def length_bounds(schema: dict, low: str, high: str, path: str) -> tuple[int, int | None]:
    """The bounds of a length, by their keywords, such as minLength and maxLength."""
    bounds: list[int | None] = []
    for keyword in (low, high):
        bound = schema.get(keyword)
        if keyword in schema and (not has_type(bound, "integer") or bound < 0):
            raise SchemaError(f"{keyword} is {bound!r:.80}: expected 0, 1, 2, …", path)
        bounds.append(None if bound is None else int(bound))
    least = bounds[0] or 0
    most = bounds[1]
    if most is not None and most < least:
        raise SchemaError(f"{low} {least} is above {high} {most}", path)
    return least, most


ALONE = ("$ref", "anyOf")  # beside these, only annotations
VALUES = {"enum", "const"}
BOUND_DIGITS = 100  # of a bound; each is a state of the automaton at least
LARGEST = 10**BOUND_DIGITS


def schema_expression(
    schema: dict | bool, *, max_whitespace: int = 1, max_depth: int = 3
) -> Expression:
    """The JSON texts that satisfy a schema, within the bounds that this module states.

    Args:
        max_whitespace: characters of white space at each place where JSON allows it.
        max_depth: arrays and objects inside each other where the schema allows any value; the
            number of states doubles with each.

    Example:

        >>> from course_pkg.serving.constrained.expression import matches
        >>> digits = schema_expression({"type": "string", "pattern": "^[0-9]+$", "maxLength": 2})
        >>> [matches(digits, text) for text in (b'"12"', b'"123"', b'"x"')]
        [True, False, False]
    """
    require_integer(max_whitespace, "max_whitespace", least=0)
    require_integer(max_depth, "max_depth")
    return _Compiler(schema, max_whitespace, max_depth).expression(schema, "#")


class _Compiler:
    def __init__(self, root: dict | bool, max_whitespace: int, max_depth: int):
        self.root = root
        self.texts = JsonTexts(max_whitespace)
        self.max_depth = max_depth
        self.referred: dict[str, Expression | None] = {}  # by $ref; None while it is compiled

    def expression(self, schema: Any, path: str) -> Expression:
        if schema is True:
            return self.texts.any_value(self.max_depth)
        if not isinstance(schema, dict):
            raise SchemaError(f"expected an object or true, got {schema!r:.80}", path)
        keywords = set(schema) - ANNOTATIONS
        for keyword in ALONE:
            if keyword in keywords:
                check_only(keywords, {keyword}, f"beside {keyword}", path)
                return self._refer(schema, path) if keyword == "$ref" else self._any(schema, path)
        types = types_of(schema, path)
        if keywords & VALUES:
            check_only(keywords, VALUES | {"type"}, "beside enum or const", path)
            return self._values(schema, types, path)
        check_keywords(keywords, types, path)
        if not keywords:
            return self.texts.any_value(self.max_depth)
        return alternate(*(getattr(self, f"_{name}")(schema, path) for name in types))

    def _values(self, schema: dict, types: list[str], path: str) -> Expression:
        """The values of enum or const that have one of the types."""
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list):
            raise SchemaError(f"enum is {values!r:.80}: expected a list", path)
        if "enum" in schema and "const" in schema:
            raise SchemaError("enum and const stand together: leave one out", path)
        kept = [v for v in values if not types or any(has_type(v, kind) for kind in types)]
        if not kept:
            raise SchemaError(f"no value of {values!r:.80} has the type {' or '.join(types)}", path)
        return alternate(*(self._value(value, path) for value in kept))

    def _value(self, value: Any, path: str) -> Expression:
        try:
            return self.texts.value(value)
        except ValueError as error:
            raise SchemaError(f"the value {value!r:.80} is not JSON: {error}", path) from error

    def _refer(self, schema: dict, path: str) -> Expression:
        pointer = schema["$ref"]
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise SchemaError(f"$ref is {pointer!r:.80}: expected #/… within the schema", path)
        if pointer not in self.referred:
            target = self.root
            for name in unquote(pointer).split("/")[1:]:
                name = name.replace("~1", "/").replace("~0", "~")
                if isinstance(target, list) and name.isdecimal():
                    target = dict(enumerate(target)).get(int(name))
                else:
                    target = target.get(name) if isinstance(target, dict) else None
            if target is None:
                raise SchemaError(f"$ref leads to {pointer}, which does not exist", path)
            self.referred[pointer] = None
            self.referred[pointer] = self.expression(target, pointer)
        referred = self.referred[pointer]
        if referred is None:
            raise SchemaError(
                f"$ref leads to {pointer}, which contains this: recursion is not supported, "
                "because unbounded nesting is not regular; write out the levels that you need",
                path,
            )
        return referred

    def _any(self, schema: dict, path: str) -> Expression:
        branches = schema["anyOf"]
        if not isinstance(branches, list) or not branches:
            raise SchemaError(f"anyOf is {branches!r:.80}: expected a list of schemas", path)
        return alternate(*(self.expression(b, f"{path}/anyOf/{i}") for i, b in enumerate(branches)))

    def _string(self, schema: dict, path: str) -> Expression:
        least, most = length_bounds(schema, "minLength", "maxLength", path)
        content = repeat(character(ANY), least, most)
        if "pattern" in schema:
            try:
                content = intersect(content, search(schema["pattern"], character))
            except (RegexError, TypeError) as error:
                raise SchemaError(f"pattern: {error}", path) from error
        return string(content)

    def _integer(self, schema: dict, path: str) -> Expression:
        bounds = []
        for keyword, rounded in (("minimum", math.ceil), ("maximum", math.floor)):
            bound = schema.get(keyword)
            if keyword in schema and not has_type(bound, "number"):
                raise SchemaError(f"{keyword} is {bound!r:.80}: expected a number", path)
            if keyword in schema and not -LARGEST < bound < LARGEST:  # or NaN
                raise SchemaError(
                    f"{keyword} must be a number of at most {BOUND_DIGITS} digits", path
                )
            bounds.append(None if bound is None else rounded(bound))
        low, high = bounds
        if low is not None and high is not None and low > high:
            raise SchemaError(f"no integer is from {low} to {high}", path)
        return integer(low, high)

    def _number(self, schema: dict, path: str) -> Expression:
        return NUMBER

    def _boolean(self, schema: dict, path: str) -> Expression:
        return alternate(literal(b"true"), literal(b"false"))

    def _null(self, schema: dict, path: str) -> Expression:
        return literal(b"null")

    def _array(self, schema: dict, path: str) -> Expression:
        least, most = length_bounds(schema, "minItems", "maxItems", path)
        if "items" in schema:
            item = self.expression(schema["items"], f"{path}/items")
        else:
            item = self.texts.any_value(self.max_depth - 1)
        return self.texts.array(item, least, most)

    def _object(self, schema: dict, path: str) -> Expression:
        if schema.get("additionalProperties", False) is not False:
            raise SchemaError("additionalProperties is supported as false only", path)
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict):
            raise SchemaError(f"properties is {properties!r:.80}: expected an object", path)
        names = list(properties)
        if not isinstance(required, list) or not all(name in names for name in required):
            raise SchemaError(f"required is {required!r:.80}: expected names of properties", path)
        if not {"properties", "additionalProperties"} & set(schema):
            return self.texts.any_object(self.max_depth)
        return self.texts.object(
            [
                Member(
                    self._value(name, path),
                    self.expression(inner, f"{path}/properties/{_pointer(name)}"),
                    name in required,
                )
                for name, inner in properties.items()
            ]
        )


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
