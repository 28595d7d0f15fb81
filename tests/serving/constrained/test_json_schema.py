"""What a guide writes is JSON that satisfies the schema; what satisfies it can be written."""

import json
import math
import random
import re

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.lm.tiny import tiny_tokenizer
from course_pkg.serving.constrained.automaton import build_automaton
from course_pkg.serving.constrained.guide import FINISHED, json_schema_guide
from course_pkg.serving.constrained.json_schema import SchemaError, schema_expression
from course_pkg.serving.constrained.json_text import JsonTexts, integer
from course_pkg.serving.constrained.vocabulary import vocabulary_of
from tests.serving.constrained.regexes import accepts
from tests.tables import each_row

VOCABULARY = vocabulary_of(tiny_tokenizer())  # 256 bytes
PATTERNS = ["^[a-z]+$", "a", "^é|\\d$", "^.{2}$", '["\\\\]', "^(yes|no)$", "\\n"]
LITERALS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-99, 99),
    st.text(max_size=3),
    st.just(1.5),
    st.just([1, {"ä": []}]),
)


def bounded(kind, low, high, largest):
    """A schema of this type, with none, one or both of two bounds."""
    pair = st.tuples(st.integers(0, largest), st.integers(0, largest)).map(sorted)
    return pair.flatmap(
        lambda bounds: st.sampled_from(
            [
                {"type": kind},
                {"type": kind, low: bounds[0]},
                {"type": kind, high: bounds[1]},
                {"type": kind, low: bounds[0], high: bounds[1]},
            ]
        )
    )


LEAVES = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": "number"}]),
    st.just({"type": ["string", "null"], "maxLength": 2}),
    st.just({"type": "string", "pattern": "^[0-9]*$", "minLength": 1, "maxLength": 3}),
    bounded("string", "minLength", "maxLength", 3),
    bounded("integer", "minimum", "maximum", 300),
    st.lists(LITERALS, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    LITERALS.map(lambda value: {"const": value}),
    st.sampled_from(PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern}),
)


@st.composite
def objects(draw, inner):
    properties = draw(st.dictionaries(st.text(max_size=2), inner, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    return {"type": "object", "properties": properties, "required": required}


def _nested(inner):
    arrays = st.tuples(inner, bounded("array", "minItems", "maxItems", 3))
    return st.one_of(
        objects(inner),
        arrays.map(lambda pair: pair[1] | {"items": pair[0]}),
        st.lists(inner, min_size=1, max_size=2).map(lambda branches: {"anyOf": branches}),
    )


SCHEMAS = st.recursive(LEAVES, _nested, max_leaves=4)


def steps_to_end(automaton):
    """For each state, the bytes of the shortest text that may end."""
    before = {state: [] for state in range(len(automaton.final))}
    for state in before:
        for target in set(automaton.leads(state).values()):
            before[target].append(state)
    reached = [state for state, final in enumerate(automaton.final) if final]
    steps = dict.fromkeys(reached, 0)
    for state in reached:  # which grows
        for earlier in before[state]:
            if earlier not in steps:
                steps[earlier] = steps[state] + 1
                reached.append(earlier)
    return steps


def random_text(guide, seed, longest=300):
    """A text that the masks allow; after `longest` bytes, the shortest way to the end."""
    chooser = random.Random(seed)
    steps = steps_to_end(guide.automaton)
    state = guide.start
    data = bytearray()
    while state != FINISHED:
        allowed = guide.allowed(state)
        ends = [token for token in allowed if token in VOCABULARY.eos]
        if len(data) <= longest:
            token = chooser.choice(allowed)
        elif ends:
            break
        else:
            token = min(allowed, key=lambda token: steps[guide.advance(state, token)])
        if token not in VOCABULARY.eos:
            data += VOCABULARY.tokens[token]
        state = guide.advance(state, token)
        assert len(data) < 10 * longest
    return data.decode()


@given(SCHEMAS, st.integers(0, 2**32))
@settings(max_examples=25)
def test_each_generated_text_parses_and_satisfies_the_schema(schema, seed):
    guide = json_schema_guide(schema, VOCABULARY)
    validator = jsonschema.Draft202012Validator(schema)
    for number in range(3):
        value = json.loads(random_text(guide, f"{seed} {number}"))
        validator.validate(value)


def examples(schema, chooser):
    """A value that satisfies a schema of this file, and has its properties in order."""
    if "enum" in schema or "const" in schema:
        return chooser.choice(schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return examples(chooser.choice(schema["anyOf"]), chooser)
    kind = schema["type"]
    kind = kind if isinstance(kind, str) else chooser.choice(kind)
    if kind == "object":
        kept = [
            name
            for name in schema["properties"]
            if name in schema["required"] or chooser.random() < 0.5
        ]
        return {name: examples(schema["properties"][name], chooser) for name in kept}
    if kind == "array":
        least = schema.get("minItems", 0)
        size = chooser.randint(least, schema.get("maxItems", least + 2))
        return [examples(schema["items"], chooser) for _ in range(size)]
    if kind == "integer":
        low = schema.get("minimum", -(10**9))
        return chooser.randint(low, schema.get("maximum", max(low, 0) + 10**9))
    if kind == "number":
        return chooser.choice([0, -1, 3.25, -0.5, 1e-7, 12345678])
    if kind == "boolean":
        return chooser.random() < 0.5
    return None if kind == "null" else _string(schema, chooser)


def _string(schema, chooser):
    # Python's $ also matches before a last newline; JSON Schema's does not.
    pattern = re.compile(schema.get("pattern", "").replace("$", r"\Z"), re.ASCII)
    letters = ["", *'07azé東🙂"\\\n\x01\x7f', "yes", "no"]
    while True:
        value = "".join(chooser.choice(letters) for _ in range(chooser.randrange(5)))
        least = schema.get("minLength", 0)
        most = schema.get("maxLength", 9)
        if least <= len(value) <= most and pattern.search(value):
            return value


@given(SCHEMAS, st.integers(0, 2**32))
@settings(max_examples=25)
def test_each_value_that_satisfies_the_schema_can_be_written(schema, seed):
    chooser = random.Random(seed)
    validator = jsonschema.Draft202012Validator(schema)
    automaton = build_automaton(schema_expression(schema))
    for _ in range(5):
        value = examples(schema, chooser)
        assert validator.is_valid(value)  # a check of the test itself
        for separators in ((",", ":"), (", ", ": ")):
            text = json.dumps(value, ensure_ascii=False, separators=separators)
            assert accepts(automaton, text), text


@given(st.integers(-1200, 1200), st.integers(-1200, 1200))
@settings(max_examples=30)
def test_integers_are_exactly_those_between_the_bounds(low, high):
    low, high = sorted((low, high))
    automaton = build_automaton(integer(low, high))
    inside = {str(number) for number in range(low, high + 1)}
    edges = {*range(low - 3, low + 3), *range(high - 3, high + 3)}
    for number in edges | {0, -1, 1, 999, 1000, -1000}:
        assert accepts(automaton, str(number)) == (str(number) in inside)
    for text in ("-0", "00", "01", "-01", "+1", "", "-", "1.0"):
        assert not accepts(automaton, text)


def test_any_value_is_bounded_in_depth_and_open_bounds_by_digits_alone():
    for depth in (1, 2):
        automaton = build_automaton(JsonTexts(max_whitespace=1).any_value(depth))
        depths = {"0": 0, "[]": 1, '{"a":[ 1]}': 2, "[[[]]]": 3, '{"a":{"b":{}}}': 3}
        for text, deep in depths.items():
            assert accepts(automaton, text) == (deep <= depth)
    automaton = build_automaton(schema_expression({"type": "object"}, max_depth=2))
    for text, fits in {"{}": 1, '{"a": [1]}': 1, "[]": 0, '{"a": [[]]}': 0}.items():
        assert accepts(automaton, text) == bool(fits)
    at_least = build_automaton(integer(low=-7))
    for text, fits in {"-7": 1, "-8": 0, "9" * 15: 1, "9" * 16: 0, "0": 1, "-0": 0}.items():
        assert accepts(at_least, text) == bool(fits)
    large = build_automaton(integer(low=10**20))
    assert accepts(large, str(10**20)) and not accepts(large, str(10**20 - 1))


def test_white_space_is_bounded_at_each_place():
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    for most in (0, 1, 3):
        automaton = build_automaton(schema_expression(schema, max_whitespace=most))
        for size in range(5):
            parts = ["{", '"a"', ":", "null", "}"]
            text = (" \n\t\r "[:size]).join(parts)
            assert accepts(automaton, text) == (size <= most)
            assert not accepts(automaton, f" {text}") and not accepts(automaton, f"{text} ")


def test_each_string_is_written_in_one_way():
    automaton = build_automaton(schema_expression({"type": "string"}))
    for text in ('"é"', r'"\n"', r'"\u0001"', r'"\\"', '"/"', '"\x7f"'):
        assert accepts(automaton, text)
    for text in (r'"\u00e9"', r'"\u000a"', '"\n"', r'"\/"', r'"\x"', '"\\"', r'"\ud800"'):
        assert not accepts(automaton, text)


def test_length_counts_characters_not_bytes_or_escapes():
    automaton = build_automaton(
        schema_expression({"type": "string", "minLength": 2, "maxLength": 2})
    )
    texts = {'"🙂é"': 1, r'"\n\u0001"': 1, '"ab"': 1, r'"\n"': 0, '"🙂"': 0, '"abc"': 0}
    for text, fits in texts.items():
        assert accepts(automaton, text) == bool(fits)


def test_references_are_followed_and_compiled_once_each():
    schema = {
        "$defs": {
            "a/b": {"type": "array", "items": {"$ref": "#/$defs/leaf"}},
            "leaf": {"const": 1},
        },
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a~1b"}, "y": {"$ref": "#/$defs/leaf"}},
        "required": ["x"],
    }
    automaton = build_automaton(schema_expression(schema))
    for text, fits in {'{"x":[1,1]}': 1, '{"x":[],"y":1}': 1, '{"x":[2]}': 0, '{"y":1}': 0}.items():
        assert accepts(automaton, text) == bool(fits)
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(50)}
    schema = {"$defs": defs | {"d50": {"const": 1}}, "$ref": "#/$defs/d0"}
    assert accepts(build_automaton(schema_expression(schema)), "1")


def schema_at_a(inner):
    return {"type": "object", "properties": {"a": inner}}


@each_row(
    ("inner", "problem"),
    [
        ({"type": "string", "format": "email"}, "the keyword format is not supported"),
        ({"type": "array", "uniqueItems": True}, "the keyword uniqueItems is not supported"),
        ({"oneOf": [{"type": "null"}]}, "the keyword oneOf is not supported"),
        ({"type": "number", "minimum": 0}, "minimum is supported for the type integer only"),
        ({"type": ["number", "integer"], "maximum": 0}, "maximum is supported for the type int"),
        ({"type": "string", "minimum": 0}, "minimum is supported for the type integer only"),
        ({"minLength": 1}, "the keyword minLength needs a type"),
        ({"enum": ["a"], "minLength": 1}, "the keyword minLength is not supported beside enum"),
        ({"enum": ["a"], "type": "integer"}, "no value of ['a'] has the type integer"),
        ({"enum": "a"}, "enum is 'a': expected a list"),
        ({"const": float("nan")}, "is not JSON"),
        ({"const": "\ud800"}, "is not JSON"),
        ({"$ref": "#/nowhere"}, "#/nowhere, which does not exist"),
        ({"$ref": "other.json"}, "$ref is 'other.json': expected #/"),
        ({"$ref": "#/properties/a"}, "recursion is not supported"),
        ({"$ref": "#", "type": "object"}, "the keyword type is not supported beside $ref"),
        ({"anyOf": []}, "anyOf is []: expected a list of schemas"),
        ({"type": "text"}, "type is 'text': expected one of string, integer"),
        ({"type": []}, "type is []: expected one of"),
        ({"type": "string", "pattern": "a(?=b)"}, "a lookahead, (?=, is not supported at posi"),
        ({"type": "string", "pattern": 3}, "pattern: the regular expression must be a string"),
        ({"type": "string", "maxLength": -1}, "maxLength is -1: expected 0, 1, 2"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength 3 is above maxLength 2"),
        ({"type": "integer", "minimum": "0"}, "minimum is '0': expected a number"),
        (
            {"type": "integer", "minimum": -(10**5000)},
            "minimum must be a number of at most 100 digits",
        ),
        ({"type": "integer", "maximum": math.nan}, "maximum must be a number of at most"),
        ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "no integer is from 2 to 1"),
        ({"type": "object", "additionalProperties": True}, "supported as false only"),
        ({"type": "object", "properties": []}, "properties is []: expected an object"),
        ({"type": "object", "properties": {}, "required": ["b"]}, "expected names of properties"),
        ({"type": "object", "properties": {"1": {}}, "required": [1]}, "expected names of prop"),
        ({"type": "object", "properties": {"\ud800": {}}}, "is not JSON"),
        (False, "expected an object or true, got False"),
        ("string", "expected an object or true, got 'string'"),
    ],
)
def test_what_is_not_supported_is_named_with_its_path(inner, problem):
    with pytest.raises(SchemaError) as caught:
        schema_expression(schema_at_a(inner))
    assert caught.value.path == "#/properties/a"
    assert problem in str(caught.value) and "(at #/properties/a of the schema)" in str(caught.value)


def test_paths_name_every_level():
    inner = {"type": "array", "items": {"anyOf": [{"type": "null"}, {"not": {}}]}}
    with pytest.raises(SchemaError) as caught:
        schema_expression({"type": "object", "properties": {"a/b~": inner}})
    assert caught.value.path == "#/properties/a~1b~0/items/anyOf/1"


def test_the_order_of_properties_is_the_schemas_and_others_are_left_out():
    properties = {"b": {"type": "null"}, "a": {"type": "null"}}
    automaton = build_automaton(schema_expression({"type": "object", "properties": properties}))
    texts = {'{"b":null,"a":null}': 1, '{"a":null,"b":null}': 0, '{"a":null}': 1, "{}": 1}
    for text, fits in (texts | {'{"c":null}': 0, '{,"a":null}': 0, '{"b":null,}': 0}).items():
        assert accepts(automaton, text) == bool(fits)


def test_equal_schemas_are_compiled_once_and_keywords_that_only_describe_change_nothing():
    schema = {"type": "boolean"}
    assert json_schema_guide(schema, VOCABULARY) is json_schema_guide(dict(schema), VOCABULARY)
    assert json_schema_guide(schema, VOCABULARY) is not json_schema_guide({"const": 1}, VOCABULARY)
    described = {"title": "T", "description": "D", "default": 0, "examples": [1], "$comment": "c"}
    plain = {"type": "integer", "maximum": 5}
    assert schema_expression(plain | described) is schema_expression(plain)
