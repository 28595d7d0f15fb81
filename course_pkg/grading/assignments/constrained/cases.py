"""`constrained`: the cases of its questions; right values are those of `serving.constrained`."""

import math
from collections.abc import Iterable
from functools import lru_cache
from random import Random
from typing import Any

from course_pkg.grading.assignments.constrained.student import RAISED
from course_pkg.grading.questions.comparators import Difference, exactly, row, wrong_type
from course_pkg.serving.constrained.automaton import (
    DEAD,
    Automaton,
    ConstraintError,
    build_automaton,
    reaching,
)
from course_pkg.serving.constrained.expression import Expression
from course_pkg.serving.constrained.json_schema import schema_expression
from course_pkg.serving.constrained.regex import parse

Inputs = dict[str, Any]
MOST_TEXTS = 2_000  # and beginnings of texts
MOST_PATTERN = 1_000  # characters: the time to compile one grows with the square
LETTERS = "abcdefghijklmnopqrstuvwxyz"
END = b"</s>"
FINISHED = -1


def words(rng: Random, *sizes: int) -> list[str]:
    """Words of so many letters; no letter occurs twice."""
    letters = iter(rng.sample(LETTERS, sum(sizes)))
    return ["".join(next(letters) for _ in range(size)) for size in sizes]


def compiled(rng: Random, pattern: str) -> tuple[list[dict[int, int]], list[int]]:
    """The smallest automaton of a pattern as plain data: transitions and accepting states."""
    automaton = build_automaton(parse(pattern))
    order = [0]  # its own numbers may change from one process to the next
    for state in order:  # which grows
        leads = automaton.leads(state).values()
        order += [s for s in dict.fromkeys(leads) if s not in order]
    numbers = [0, *rng.sample(range(1, len(order)), len(order) - 1)]
    number_of = dict(zip(order, numbers, strict=True))
    transitions: list[dict[int, int]] = [{} for _ in order]
    for state in order:
        leads = automaton.leads(state)
        transitions[number_of[state]] = {byte: number_of[to] for byte, to in leads.items()}
    return transitions, sorted(number_of[i] for i in order if automaton.final[i])


def as_automaton(transitions: list[dict[int, int]], accepting: list[int]) -> Automaton:
    """The course's automaton of plain data."""
    every = bytes(range(256))  # each byte is a class of its own
    rows = [[leads.get(byte, DEAD) for byte in every] for leads in transitions]
    return Automaton(rows, every, [state in accepting for state in range(len(rows))])


def constraint(rng: Random, pattern: str, texts: Iterable[str | bytes]) -> Inputs:
    """An automaton of a pattern, and a vocabulary of these texts and an end token, shuffled."""
    transitions, accepting = compiled(rng, pattern)
    tokens = [text.encode() if isinstance(text, str) else text for text in (*texts, END)]
    rng.shuffle(tokens)
    automaton = {"transitions": transitions, "accepting": accepting}
    return automaton | {"tokens": tokens, "end": tokens.index(END)}


def after_tokens(inputs: Inputs) -> list[dict[int, int]]:
    """For each state the tokens that its automaton can read, and where they lead."""
    automaton = as_automaton(inputs["transitions"], inputs["accepting"])
    used = [t for t, token in enumerate(inputs["tokens"]) if token and t != inputs["end"]]
    leads = []
    for state in range(len(inputs["transitions"])):
        reached = {t: automaton.run(inputs["tokens"][t], state) for t in used}
        leads.append({t: target for t, target in reached.items() if target >= 0})
    return leads


def trimmed_guide(inputs: Inputs) -> list[dict[int, int]]:
    """For each state the tokens that may come next, and where they lead; the end token to −1."""
    after = after_tokens(inputs)
    edges = [(state, target) for state, leads in enumerate(after) for target in leads.values()]
    usable = reaching(edges, [state in inputs["accepting"] for state in range(len(after))])
    guide = [{t: target for t, target in leads.items() if usable[target]} for leads in after]
    for state in inputs["accepting"]:
        guide[state][inputs["end"]] = FINISHED
    return guide


# 1 A step


def run_expected(inputs: Inputs) -> int:
    """The state after the bytes."""
    return as_automaton(inputs["transitions"], []).run(inputs["data"], inputs["state"])


def run_bytes(rng: Random, size: int) -> Inputs:
    """Bytes that can follow: letters; a part of a text with characters of several bytes; a loop."""
    a, b, c = words(rng, 2, 2, 1)
    accents = rng.sample("äéîõüçñ", 3)
    pattern = (f"({a}|{c}{b})", f"{c}({'|'.join(accents)})€[{a}]", f"({a}|{b})*{c}")[size]
    text = (c + b, f"{c}{accents[0]}€{a[0]}", a + b + b + a + c)[size].encode()
    start, stop = ((0, 2), (rng.randint(0, 1), 5), (rng.randint(0, 1), 7))[size]
    transitions, _ = compiled(rng, pattern)
    state = as_automaton(transitions, []).run(text[:start])
    return {"transitions": transitions, "state": state, "data": text[start:stop]}


def run_dead(rng: Random, size: int) -> Inputs:
    """A byte that can't follow, then one that the last state can read; or the state is −1.

    Without that byte the others can follow. Then it isn't there, or in every second case.
    """
    a, b, other = words(rng, 2, 2, 1)
    transitions, _ = compiled(rng, f"({a}|{b})*")
    last = len(transitions) - 1
    before = bytes(byte for byte, state in transitions[0].items() if state == last)
    start, state = (b"", -1) if size == 2 else ((before, 0), (b"", last))[size % 2]
    if size < 2 or (size > 3 and rng.random() < 0.5):
        start += other.encode()
    data = start + bytes(transitions[last])
    return {"transitions": transitions, "state": state, "data": data}


def run_empty(rng: Random, size: int) -> Inputs:
    """No bytes, in some state; in the last case there is one."""
    transitions, _ = compiled(rng, words(rng, 2 + size)[0])
    last = len(transitions) - 1
    state = (0, rng.randint(1, last), -1, rng.randint(0, last))[size]
    data = b""
    if size == 3:
        while not transitions[state]:
            state = rng.randint(0, last)
        data = bytes(transitions[state])
    return {"transitions": transitions, "state": state, "data": data}


# 2 and 3 Masks


def untrimmed(inputs: Inputs) -> list[list[int]]:
    """The masks without regard to dead ends."""
    masks = after_tokens(inputs)
    ends = [[inputs["end"]] if s in inputs["accepting"] else [] for s in range(len(masks))]
    return [sorted([*mask, *end]) for mask, end in zip(masks, ends, strict=True)]


def trimmed(inputs: Inputs) -> list[list[int]]:
    """The masks, trimmed."""
    return [sorted(leads) for leads in trimmed_guide(inputs)]


def same_masks(expected: list[list[int]], given: Any) -> str | None:
    """A list of token ids for each state, in any order."""
    if isinstance(given, list | tuple):
        given = [sorted(mask) if isinstance(mask, list | tuple) else mask for mask in given]
    names = [f"state {state}" for state in range(len(expected))]
    return row(each=exactly(), names=names)([*map(sorted, expected)], given)


def masks_bytes(rng: Random, size: int) -> Inputs:
    """Parts of words, in three ways that go wrong: another ending, one too long, another word."""
    a, b, other = words(rng, 3, 3 + size, 3)
    parts = [a[:1], a[:2], a, a[1:], b[:2], b[2:], a[:2] + other[0], a + other[1], other]
    return constraint(rng, f"{a}|{b}", parts)


def masks_characters(rng: Random, size: int) -> Inputs:
    """Characters of two bytes that have the first one in common, and tokens with parts of them."""
    first, second = (text.encode() for text in rng.sample("àáâãäåæçèéêë", 2))
    a, b = words(rng, 1, 1)
    pattern = f"{a}({first.decode()}|{second.decode()}){b}"
    tokens = [a, a.encode() + first[:1], first[1:], second, second[1:] + b.encode(), b]
    return constraint(rng, pattern, tokens[: 4 + size])


def masks_end(rng: Random, size: int) -> Inputs:
    """The text may end in some states, and go on from there."""
    digits = "".join(sorted(rng.sample("0123456789", 3)))
    a, b = words(rng, 2, 2)
    pattern = (f"[{digits}]{{1,{rng.randint(2, 4)}}}", f"{a}({b})?", f"{a}({b})*{a}?")[size]
    return constraint(rng, pattern, [[*digits], [a, b], [a, a[0], a[1], b]][size])


def masks_never(rng: Random, size: int) -> Inputs:
    """The automaton can read the end token's bytes, or there is a token without bytes, or both."""
    letters = "s" + "".join(rng.sample("abipq", 2))
    empty = [b""] if size > 0 else []
    readable = rng.choice(["/", "/?"]) if size != 1 else ""
    return constraint(rng, f"<{readable}[{letters}]>", ["<", "</", *letters, "s>", ">", *empty])


def trim_tokens(rng: Random, size: int) -> Inputs:
    """Words for whose second half there is no token; or a state from which no byte leads on."""
    a, b, c = words(rng, 2, 2 + size, 2)
    inputs = constraint(rng, f"{a}|{b}|{c}", [a, c[0], c[1], b[0], b[:-1], a[0]])
    if size == 1:
        inputs["transitions"][0][inputs["tokens"][0][0]] = len(inputs["transitions"])
        inputs["transitions"].append({})
    return inputs


def trim_far(rng: Random, size: int) -> Inputs:
    """A word whose beginning has several tokens in a row, and whose end has none."""
    a, b = words(rng, 2, 4 + size)
    return constraint(rng, f"{a}|{b}", [a, b[:1], b[1:2], b[2:-1]])


def trim_circle(rng: Random, size: int) -> Inputs:
    """A loop that some tokens write; for its exit there is no token."""
    a, b, c, d = words(rng, 1, 2 + size, 1, 2)
    return constraint(rng, f"{a}({b})*{c}|{d}", [a, b, b[0], b[1:], d, d[0], d[1]])


def trim_kept(rng: Random, size: int) -> Inputs:
    """Loops with an exit, and ends that are several tokens away."""
    a, b, c = words(rng, 1, 2, 3 + size)
    return constraint(rng, f"{a}({b})*{c}", [a, b[0], b[1], *c])


# 4 The loop


def generate_expected(inputs: Inputs) -> tuple[list[int], int, bool]:
    """The tokens, the passes, and whether the text is complete."""
    guide, scores = inputs["guide"], inputs["scores"]
    state, passes = 0, 0
    tokens: list[int] = []
    while state != FINISHED and len(tokens) < inputs["most"]:
        allowed = guide[state]
        masked = [x if t in allowed else -math.inf for t, x in enumerate(scores[len(tokens)])]
        passes += len(allowed) > 1
        tokens.append(masked.index(max(masked)))
        state = guide[state][tokens[-1]]
    return tokens, passes, state == FINISHED


def _scored(rng: Random, pattern: str, letters: str, most: int = 12) -> Inputs:
    """A guide whose tokens are letters, and rows of scores, whole numbers without ties."""
    guide = trimmed_guide(constraint(rng, pattern, letters))
    scores = [rng.sample(range(50), len(letters) + 1) for _ in range(12)]
    return {"guide": guide, "scores": scores, "most": most}


def generate_allowed(rng: Random, size: int) -> Inputs:
    """Choices with forced tokens between them; once, all scores are equal."""
    a, b, c, d = words(rng, 2, 1 + size, 3, 1)
    inputs = _scored(rng, f"[{a}]{b}[{c}]{d}", a + b + c + d)
    if size == 1:
        inputs["scores"] = [[0] * len(line) for line in inputs["scores"]]
    return inputs


def generate_goes_on(rng: Random, size: int) -> Inputs:
    """The text may end after each letter; the end token's score is the highest at some place."""
    (letters,) = words(rng, 3)
    inputs = _scored(rng, f"[{letters}]{{1,4}}", letters)
    [end] = {t for leads in inputs["guide"] for t, state in leads.items() if state == FINISHED}
    for place, line in enumerate(inputs["scores"]):
        line[end] = 60 if place == (2, 1, 3)[size] else -1
    return inputs


def generate_passes(rng: Random, size: int) -> Inputs:
    """Forced tokens at the beginning, between one to four choices, and at the end."""
    a, *choices = words(rng, 1 + size, *[2, 3, 2, 3][: rng.randint(1, 4)])
    pattern = a + a[0].join(f"[{letters}]" for letters in choices) + a[0]
    return _scored(rng, pattern, a + "".join(choices))


def generate_limit(rng: Random, size: int) -> Inputs:
    """A choice, and then forced tokens: cut among these; the end token just fits; cut before it."""
    a, b = words(rng, 2, 2 + size)
    return _scored(rng, f"[{a}]{b}", a + b, most=(2, 5, 5)[size])


# 5 JSON


def json_expected(inputs: Inputs) -> Any:
    """All texts that satisfy the schema."""
    if inputs["_unsupported"]:
        return RAISED
    return texts_of(schema_expression(inputs["schema"], max_whitespace=0))


def texts_of(expression: Expression) -> list[str]:
    """The texts of an expression, short ones first; ConstraintError if there are too many."""
    automaton = build_automaton(expression)
    leads = [automaton.leads(state) for state in range(len(automaton.rows))]
    texts = []
    todo = [(0, b"")]
    for state, text in todo:  # which grows
        if len(todo) > MOST_TEXTS:
            raise ConstraintError("it accepts far more texts than the schema")
        if automaton.final[state]:
            texts.append(text.decode())
        todo += [(target, text + bytes([byte])) for byte, target in leads[state].items()]
    return texts


@lru_cache(maxsize=1024)
def _texts(pattern: str) -> list[str]:
    return texts_of(parse(pattern))


def same_texts(expected: Any, given: Any) -> str | None:
    """A regular expression that accepts exactly the expected texts, or a ValueError.

    expected: the texts, or a wrong answer's expression.
    """
    if expected == given:
        return None
    if RAISED in (expected, given) or not isinstance(given, str):
        return wrong_type("a ValueError" if expected == RAISED else "a text", given)
    if len(given) > MOST_PATTERN:
        return f"your expression has {len(given)} characters; at most {MOST_PATTERN} are read"
    try:
        right, other = (_texts(v) if isinstance(v, str) else v for v in (expected, given))
    except ValueError as error:  # RegexError and ConstraintError
        return f"your expression: {error}"
    if not (differing := set(right) ^ set(other)):
        return None
    text = min(differing, key=lambda text: (len(text), text))
    told = ("accepted", "refused") if text in right else ("refused", "accepted")
    return Difference.at(text, "the expression is wrong for this text", *told)


def _integer(rng: Random) -> dict[str, Any]:
    low = rng.choice([rng.randint(-12, -3), rng.randint(2, 9)])
    return {"type": "integer", "minimum": low, "maximum": rng.randint(10, 14)}


def _object(rng: Random, properties: dict[str, Any]) -> dict[str, Any]:
    """An object; the order of `required` is another one than that of the properties."""
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names[1:] + names[:1]}


def json_values(rng: Random, size: int) -> Inputs:
    """A boolean, null, and two ranges."""
    kinds = [{"type": "boolean"}, {"type": "null"}, _integer(rng), _integer(rng)]
    return {"schema": kinds[size], "_unsupported": False}


def json_escaped(rng: Random, size: int) -> Inputs:
    """Strings with a quote, a backslash or a new line, and a letter that is not ASCII.

    The dot tells whoever escapes neither for JSON nor for the expression.
    """
    a, b, c = words(rng, 2, 2, 2)
    sign = ('"', "\\", "\n")[size]
    return {"schema": {"enum": [a + sign + b, f"{c}.{rng.choice('éüñ')}"]}, "_unsupported": False}


def json_signs(rng: Random, size: int) -> Inputs:
    """Strings with a dot and other signs of regular expressions."""
    a, b, c = words(rng, 2, 2, 2)
    other = rng.choice(["+", "*", "?", "|", "(", ")", "[", "{2}", "$", "^"])
    return {"schema": {"enum": [f"{a}.{b}", f"{c}{other}"]}, "_unsupported": False}


def json_objects(rng: Random, size: int) -> Inputs:
    """Two properties; then a name with a sign; then an object in an object."""
    a, b, c = words(rng, 2, 2, 3)
    inner = _object(rng, {a: {"type": "boolean"}, b: {"enum": [c, c[:1]]}})
    outer = _object(rng, {f"{b}{rng.choice('.+?')}é": {"type": "boolean"}, a: {"type": "null"}})
    nested = _object(rng, {c: inner, b: {"type": "null"}})
    return {"schema": (inner, outer, nested)[size], "_unsupported": False}


def json_unsupported(rng: Random, size: int) -> Inputs:
    """A keyword too many, of an integer, an enumeration, and an object; an unknown type inside.

    Then there is none of these, or in every second case.
    """
    a, b = words(rng, 2, 2)
    unsupported = size < 4 or (size > 4 and rng.random() < 0.5)
    kind = rng.choice(["array", "number"]) if unsupported else "null"
    schema, more = (
        (_integer(rng), {"multipleOf": 2}),
        ({"enum": [a, b]}, {"maxLength": 1}),
        (_object(rng, {a: {"type": "boolean"}, b: _integer(rng)}), {"minProperties": 3}),
        (_object(rng, {a: {"type": "null"}, b: {"type": kind}}), {}),
    )[size % 4]
    return {"schema": schema | (more if unsupported else {}), "_unsupported": unsupported}


def refused(expected: Any, given: Any) -> str | None:
    """A comparator: a ValueError, or a text; what the text says, other properties judge."""
    if expected == RAISED or given == RAISED or not isinstance(given, str):
        wanted = "a ValueError" if expected == RAISED else "a text"
        return None if expected == given else wrong_type(wanted, given)
    return None
