"""What may come next in constrained output, for a pattern or schema and a text."""

import json

from course_pkg.pages.labs.playgrounds.markup import Safe, chip, element, joined, paragraph, table
from course_pkg.pages.labs.playgrounds.playground import Field, Playground, WrongInput
from course_pkg.serving.constrained.automaton import (
    DEAD,
    Automaton,
    ConstraintError,
    build_automaton,
)
from course_pkg.serving.constrained.expression import Expression
from course_pkg.serving.constrained.json_schema import SchemaError, schema_expression
from course_pkg.serving.constrained.regex import RegexError, parse

REGEX = "regular expression"
SCHEMA = "JSON Schema"
MOST_STATES = 200
MOST_SHOWN = 8


def expression(kind: str, pattern: str) -> Expression:
    """What the pattern stands for; a schema's texts are without white space."""
    if kind == REGEX:
        return parse(pattern)
    try:
        schema = json.loads(pattern)
    except (ValueError, RecursionError) as error:
        wanted = 'expected a JSON Schema such as {"type": "integer"}, but this is no JSON'
        raise WrongInput(f"Pattern: {wanted} ({error})") from None
    return schema_expression(schema, max_whitespace=0, max_depth=1)


def view(kind: str, pattern: str, text: str) -> str:
    """The states that the text passes through, and what may follow it."""
    try:
        automaton = build_automaton(expression(kind, pattern))
    except (RegexError, SchemaError, ConstraintError) as error:
        raise WrongInput(f"Pattern: {error}") from None
    states = len(automaton.final)
    if states > MOST_STATES:
        raise WrongInput(
            f"Pattern: it needs {states} states, and at most {MOST_STATES} are shown here: shorten "
            "its counted repetitions"
        )
    path = []
    state = 0
    for character in text:
        state = automaton.run(character.encode("utf-8", "replace"), state)
        path.append(chip(character, "match" if state != DEAD else "clipped"))
        if state == DEAD:
            break
    walked = joined(path, " ") or Safe("<i>nothing yet</i>")
    pieces = [
        paragraph(f"The smallest automaton has {states} state{'s' if states > 1 else ''}."),
        element("p", "The text so far: ", walked),
    ]
    if state == DEAD:
        said = "After the last character, marked ✂, no text matches: a model may not write it."
        return joined([*pieces, paragraph(said, "lab-wrong")])
    end = "may end here" if automaton.final[state] else "may not end here"
    pieces.append(element("p", f"State {state}. The text {end}. ", "What may follow:"))
    pieces.append(table(("next", "leads to state"), following(automaton, state)))
    return joined(pieces)


def following(automaton: Automaton, state: int) -> list[tuple[Safe | str, str]]:
    """Sets of bytes that can follow, by the state they lead to."""
    targets: dict[int, list[int]] = {}
    for byte, target in automaton.leads(state).items():
        targets.setdefault(target, []).append(byte)
    rows = [(ranges(codes), str(target)) for target, codes in sorted(targets.items())]
    if not rows:
        return [("nothing", "")]
    more = len(rows) - MOST_SHOWN
    return rows[:MOST_SHOWN] + ([(f"and {more} more", "")] if more > 0 else [])


def ranges(codes: list[int]) -> Safe:
    """Bytes as chips, neighbors as one range; printable ASCII as characters."""
    spans: list[list[int]] = []
    for code in codes:
        if spans and code == spans[-1][1] + 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    shown = [name(low) if low == high else f"{name(low)} … {name(high)}" for low, high in spans]
    extra = [f"and {len(shown) - MOST_SHOWN} more"] if len(shown) > MOST_SHOWN else []
    return joined([*(chip(span, "none") for span in shown[:MOST_SHOWN]), *extra], " ")


def name(code: int) -> str:
    """A byte as a reader writes it.

    Example:

        >>> name(97), name(32), name(195)
        ('a', 'space', 'byte C3')
    """
    if code == 32:
        return "space"
    return chr(code) if 33 <= code < 127 else f"byte {code:02X}"


PLAYGROUND = Playground(
    "automaton",
    "What may come next",
    (
        Field("kind", "The pattern is a", "choice", REGEX, options=(REGEX, SCHEMA)),
        Field("pattern", "Pattern", "text", "-?(0|[1-9][0-9]*)(\\.[0-9]+)?", most=160),
        Field("text", "Text so far", "text", "12", most=60),
    ),
    view,
)
