"""The keywords of JSON Schema that constraints support, and checks of what a schema gives.

Every other keyword is an error with its path, apart from those that only describe: a constraint
that ignores a keyword looks satisfied and isn't.

Source: JSON Schema, draft 2020-12, Validation. Chapter: evaluation/constrained-output.
"""

from typing import Any

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
    """Whether a JSON value has a type by its JSON Schema name.

    >>> has_type(2.0, "integer"), has_type(True, "integer")
    (True, False)
    """
    if name == "null":
        return value is None
    if isinstance(value, bool) or name == "boolean":
        return isinstance(value, bool) and name == "boolean"
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, PYTHON_TYPES[name])


def types_of(schema: dict, path: str) -> list[str]:
    """The types that a schema names, [] if it names none. Raises SchemaError."""
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


def check_only(given: set[str], allowed: set[str], where: str, path: str) -> None:
    """Raise SchemaError for a keyword that is not allowed; where: "beside …"."""
    for keyword in sorted(given - allowed):
        raise SchemaError(f"the keyword {keyword} is not supported {where}", path)


def check_keywords(given: set[str], types: list[str], path: str) -> None:
    """Raise SchemaError unless each keyword is supported for one of the types."""
    known = set().union(*KEYWORDS.values())
    for keyword in sorted(given - {"type"}):
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
    """The bounds of a length, by their keywords, such as minLength and maxLength.

    >>> length_bounds({"minLength": 2}, "minLength", "maxLength", "#")
    (2, None)
    """
    found = []
    for keyword in (low, high):
        bound = schema.get(keyword)
        if keyword in schema and (not has_type(bound, "integer") or bound < 0):
            raise SchemaError(f"{keyword} is {bound!r:.80}: expected 0, 1, 2, …", path)
        found.append(None if bound is None else int(bound))
    least = found[0] or 0
    most = found[1]
    if most is not None and most < least:
        raise SchemaError(f"{low} {least} is above {high} {most}", path)
    return least, most
