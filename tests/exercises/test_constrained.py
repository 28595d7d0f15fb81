"""`constrained`: its right values are those of the course's guides, and of counting by hand."""

import itertools
import json
import re
from random import Random
from types import SimpleNamespace

import jsonschema
import pytest
import torch
from transformers import LlamaConfig

from course_pkg.constrained.decoding import generate_greedily
from course_pkg.constrained.guide import FINISHED, Guide
from course_pkg.constrained.json_schema import schema_expression
from course_pkg.constrained.schema_keywords import SchemaError
from course_pkg.constrained.vocabulary import Vocabulary
from course_pkg.grading.checks.constrained import automata, cases
from course_pkg.grading.checks.constrained.student import RAISED
from tests.exercises.assignments import (
    SOLUTIONS,
    model_answers,
    notebook,
    patched,
    points_lost,
)

SEEDS = range(8)
CONSTRAINTS = [
    getattr(cases, f"{question}_{name}")
    for question, names in (
        ("masks", ("bytes", "characters", "end", "never")),
        ("trim", ("tokens", "far", "circle", "kept")),
    )
    for name in names
]
DRAWS = [
    pytest.param(draw, seed, id=f"{draw.__name__}-{seed}") for draw in CONSTRAINTS for seed in SEEDS
]
JSON = [cases.json_values, cases.json_escaped, cases.json_signs, cases.json_objects]


def guide_of(inputs):
    """The course's guide of a case."""
    automaton = automata.as_automaton(inputs["transitions"], inputs["accepting"])
    return Guide(automaton, Vocabulary(inputs["tokens"], eos=[inputs["end"]]))


@pytest.mark.parametrize(("draw", "seed"), DRAWS)
def test_trimmed_masks_are_those_of_the_courses_guide(draw, seed):
    for size in range(3):
        inputs = draw(Random(seed), size)
        masks = cases.trimmed(inputs)
        guide = automata.trimmed_guide(inputs)
        if not masks[0]:  # no tokens write a text: this is for the untrimmed masks alone
            assert draw is cases.masks_characters
            continue
        course = guide_of(inputs)
        for state in course.states:
            assert masks[state] == course.allowed(state)
            assert guide[state] == {t: course.advance(state, t) for t in masks[state]}


@pytest.mark.parametrize(("draw", "seed"), DRAWS)
def test_masks_and_usable_states_are_those_of_counting_all_texts(draw, seed):
    """A token is allowed if its bytes lead on; a state is usable if some tokens in a row end."""
    inputs = draw(Random(seed), seed % 3)
    transitions = inputs["transitions"]
    tokens = inputs["tokens"]
    end = inputs["end"]

    def after(state, token):
        for byte in token:
            state = None if state is None else transitions[state].get(byte)
        return state

    texts = [t for t, token in enumerate(tokens) if t != end and token]
    reached = [{s} for s in range(len(transitions))]
    for _, states in itertools.product(transitions, reached):  # as many tokens as there are states
        states |= {after(s, tokens[t]) for s in states for t in texts} - {None}
    for state in range(len(transitions)):
        ends = {end} if state in inputs["accepting"] else set()
        allowed = {t for t in texts if after(state, tokens[t]) is not None}
        usable = {t for t in allowed if reached[after(state, tokens[t])] & set(inputs["accepting"])}
        assert cases.untrimmed(inputs)[state] == sorted(allowed | ends)
        assert cases.trimmed(inputs)[state] == sorted(usable | ends)


def test_the_example_is_that_of_the_page():
    inputs = {"transitions": [{97: 1, 99: 2}, {98: 3}, {100: 3}, {}], "accepting": [3]}
    inputs |= {"tokens": [b"ab", b"a", b"c", b"b", b"</s>"], "end": 4}
    assert cases.untrimmed(inputs) == [[0, 1, 2], [3], [], [4]]
    assert cases.trimmed(inputs) == [[0, 1], [3], [], [4]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_byte_that_cannot_follow_has_one_after_it_that_the_last_state_can_read(seed):
    for size in range(3):
        inputs = cases.run_dead(Random(seed), size)
        assert cases.run_expected(inputs) == -1
        assert inputs["data"][-1] in inputs["transitions"][-1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["allowed", "goes_on", "passes", "limit"])
def test_the_loop_is_that_of_the_course(name, seed, monkeypatch):
    built = []

    def trimmed_guide(inputs):
        built.append(inputs)
        return automata.trimmed_guide(inputs)

    monkeypatch.setattr(cases, "trimmed_guide", trimmed_guide)
    for size in range(3):
        inputs = getattr(cases, f"generate_{name}")(Random(seed), size)
        course = guide_of(built[-1])
        seen = []

        def model(ids, seen=seen, inputs=inputs, **_):
            seen += ids[0].tolist()
            row = torch.tensor([[inputs["scores"][len(seen) - 1]]], dtype=torch.float32)
            return SimpleNamespace(logits=row)

        table = FakeModel(model)
        found = generate_greedily(table, [0], course, inputs["most"])
        assert cases.generate_expected(inputs) == (found.tokens, found.passes, found.finished)


class FakeModel:
    """Logits from a table, called as a model is."""

    device = "cpu"
    config = LlamaConfig(num_hidden_layers=1)

    def __init__(self, call):
        self.call = call

    def __call__(self, ids, **options):
        return self.call(ids, **options)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_texts_of_a_schema_are_all_that_satisfy_it(seed):
    for draw, size in itertools.product(JSON, range(3)):
        schema = draw(Random(seed), size)["schema"]
        texts = cases.json_expected({"schema": schema, "_unsupported": False})
        assert sorted(texts) == sorted(compact(value) for value in values(schema))
        for text in texts:
            jsonschema.validate(json.loads(text), schema)
        pattern = model_answers("constrained")["json_regex"](schema)
        assert all(re.fullmatch(pattern, text) for text in texts)  # as Python reads it


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def values(schema):
    """All values of a schema."""
    match schema:
        case {"enum": texts}:
            return texts
        case {"type": "integer"}:
            return [*range(schema["minimum"], schema["maximum"] + 1)]
        case {"type": "object", "properties": inner}:
            rows = itertools.product(*map(values, inner.values()))
            return [dict(zip(inner, row, strict=True)) for row in rows]
    return {"boolean": [False, True], "null": [None]}[schema["type"]]


@pytest.mark.parametrize("size", range(3))
def test_keywords_that_are_not_supported_are_errors_in_the_course_too(size):
    inputs = cases.json_unsupported(Random(1), size)
    with pytest.raises(SchemaError):
        schema_expression(inputs["schema"])
    assert cases.json_expected(inputs) == RAISED


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ('"a"|"b"', None),
        ('"[ab]"', None),
        ('(?:"(a|b)")', None),
        ('"a"', '"b": the expression is wrong'),
        ('"[a-c]"', '"c": the expression is wrong'),
        ('"a|b"', "the expression is wrong"),
        ('^"[ab]"$', "the anchor ^ is not supported"),
        ('"[ab]', "the expression is wrong"),
        ('"[ab"', "there is no ]"),
        ('"(a*)*"', "far more texts"),
        ('".{0,999}"', "far more texts"),
        ('"(a|b|ab){0,5000}"', "your expression"),
        ("a" * 30_000, "at most 1000 are read"),
        ("a" * 999, "the expression is wrong"),
        ("(" * 200, "groups inside each other"),
        ("", "the expression is wrong"),
        (b'"a"', "expected a text"),
        (RAISED, "expected a text"),
    ],
)
def test_an_expression_is_judged_by_its_texts(given, told):
    found = cases.same_texts(['"a"', '"b"'], given)
    assert found is None if told is None else told in found


def test_only_a_value_error_is_a_value_error():
    assert cases.same_texts(RAISED, RAISED) is None
    assert "expected a ValueError" in cases.same_texts(RAISED, "null")


@pytest.mark.parametrize(
    ("question", "old", "new", "points"),
    [
        ("masks", "    masks = []", "    tokens[end] = b''\n    masks = []", 1),
        (
            "trim",
            "    usable = set()",
            "    accepting.sort(reverse=True)\n    transitions[0] = {}\n    usable = set()",
            2,
        ),
        ("generate", "    state, tokens", "    guide[-1] = {}\n    state, tokens", 1),
    ],
)
def test_a_changed_argument_costs_the_property_that_says_so(question, old, new, points):
    answer = patched("constrained", question, old, new)
    assert points_lost("constrained", question, answer) >= points


@pytest.mark.parametrize(
    ("question", "old", "new", "lost"),
    [
        ("run", "get(byte, -1)", "get(byte % 128, -1)", 1),
        ("run", "state == -1", "state == -1 or not transitions[state]", 0),
        ("masks", "state in accepting", "state in accepting[:1]", 1),
        ("masks", "state in accepting", "state == len(transitions) - 1", 4),
        ("masks", "t != end", "t < len(tokens) - 1", 4),
        ("trim", "while more:", "for _ in range(3):", 1),
        ("generate", "len(tokens) < most", "passes < most", 1),
        ("json", "json.dumps(value, ensure_ascii=False)", "f'\"{value}\"'", 1),
        ("json", "re.escape(json.dumps(name, ensure_ascii=False))", "f'\"{name}\"'", 2),
    ],
)
def test_an_answer_that_is_right_for_most_inputs_loses_points(question, old, new, lost):
    assert points_lost("constrained", question, patched("constrained", question, old, new)) == lost


def test_the_mark_scheme_has_the_numbers_of_the_formulas():
    scheme = notebook(SOLUTIONS, "constrained").cells[-2].source
    first = {"Yes": 0.30, "No": 0.55}
    then = {"Yes": 0.90, "No": 0.10}
    joint = {word: first[word] * then[word] for word in first}
    total = sum(joint.values())
    masked = {word: first[word] / sum(first.values()) for word in first}
    for word, p in joint.items():
        assert f"{p:.3f}".rstrip("0") in scheme
        assert f"{p / total:.2f}" in scheme
        assert f"{masked[word]:.2f}" in scheme
        assert masked[word] == pytest.approx(p / (sum(first.values()) * then[word]))
    for number in (f"{total:.3f}", f"{1 / total:.1f}", f"{joint['Yes'] / joint['No']:.1f}"):
        assert number in scheme
    assert max(joint, key=joint.get) == "Yes"
    assert max(masked, key=masked.get) == "No"
    assert FINISHED == automata.FINISHED
