"""The smallest deterministic automaton of an expression: for each state, where each byte leads.

A state of the first automaton is an expression, "what may still come"; the derivative by a byte is
the next one. Two different expressions may be the same language, so the states are then merged.
Sources: Brzozowski (1964); Hopcroft (1971), An n log n algorithm for minimizing states in a finite
automaton.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from course_pkg.serving.constrained.expression import NOTHING, Derivatives, Expression

if TYPE_CHECKING:  # automata need no numpy; the masks of a vocabulary do
    import numpy as np

MOST_STATES = 10_000  # a table of 10 MB, and masks of about 60 MB for SmolLM2
MOST_WORK = 2_000_000  # parts of expressions that are looked at, which takes a few seconds
DEAD = -1


class ConstraintError(ValueError):
    """A constraint that no text can satisfy, or that is too large."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """States 0 to n - 1; 0 is the first. DEAD (-1) is in place of a state if nothing can follow.

    Attributes:
        rows: the next state by each class of bytes, (states, classes).
        class_of: the class of each byte.
        final: whether the text may end, (states,).
    """

    rows: Sequence[Sequence[int]]
    class_of: bytes
    final: Sequence[bool]

    @cached_property
    def transitions(self) -> "np.ndarray":
        """The next state by each byte, (states, 256) int32."""
        import numpy as np

        return np.array(self.rows, np.int32)[:, np.frombuffer(self.class_of, np.uint8)]

    @cached_property
    def accepting(self) -> "np.ndarray":
        """Where the text may end, (states,) bool."""
        import numpy as np

        return np.array(self.final, bool)

    def leads(self, state: int) -> dict[int, int]:
        """The bytes that can follow a state, and where they lead."""
        row = self.rows[state]
        targets = ((byte, row[which]) for byte, which in enumerate(self.class_of))
        return {byte: target for byte, target in targets if target != DEAD}

    def run(self, data: bytes, state: int = 0) -> int:
        """The state after these bytes, DEAD if they cannot follow."""
        for byte in data:
            if state == DEAD:
                break
            state = self.rows[state][self.class_of[byte]]
        return state


def build_automaton(expression: Expression) -> Automaton:
    """The smallest automaton whose every state leads to the end.

    Raises:
        ConstraintError: no string belongs to the language, or the automaton is too large.

    Example:

        >>> from course_pkg.serving.constrained.regex import parse
        >>> automaton = build_automaton(parse("ab|cd"))
        >>> automaton.leads(0), automaton.run(b"cb"), automaton.final[automaton.run(b"ab")]
        ({97: 1, 99: 2}, -1, True)
    """
    edges, final = _explore(expression)
    rows, class_of = _by_class(edges)
    rows, final = _without_dead_ends(rows, final)
    rows, class_of = _different_columns(rows, class_of)
    block_of = _merge(rows, final)
    number_of: dict[int, int] = {}  # by their first state, so that block 0 has the start
    firsts = []
    for state, block in enumerate(block_of):
        if block not in number_of:
            number_of[block] = len(number_of)
            firsts.append(state)
    new_number = {state: number_of[block] for state, block in enumerate(block_of)}
    new_number[DEAD] = DEAD
    merged = [tuple(new_number[target] for target in rows[state]) for state in firsts]
    return Automaton(merged, class_of, [final[state] for state in firsts])


Edges = list[tuple[int, int]]  # sets of bytes, as the bits of a number, and the states they lead to
Rows = list[tuple[int, ...]]


def _explore(expression: Expression) -> tuple[list[Edges], list[bool]]:
    """All derivatives of the expression, and for each of them whether it may end."""
    derivatives = Derivatives()
    number_of = {expression: 0}
    states = [expression]
    edges_of = []
    for state in states:  # which grows
        if len(states) > MOST_STATES or derivatives.work > MOST_WORK:
            raise ConstraintError(
                f"the constraint needs more than {MOST_STATES} states, or too much work to find "
                "them: shorten its counted repetitions or patterns"
            )
        edges = []
        # By their first bytes, so that states have the same numbers in each process.
        for mask in sorted(derivatives.classes(state), key=lambda mask: mask & -mask):
            target = derivatives.by(state, (mask & -mask).bit_length() - 1)
            if target is NOTHING:
                continue
            if target not in number_of:
                number_of[target] = len(states)
                states.append(target)
            edges.append((mask, number_of[target]))
        edges_of.append(edges)
    return edges_of, [state.nullable for state in states]


def _by_class(states: list[Edges]) -> tuple[Rows, bytes]:
    """The next states by class of bytes, (n, classes), and the class of each byte.

    Two bytes are in one class if no set of bytes in any state tells them apart.
    """
    masks = {mask for edges in states for mask, _ in edges}
    classes = [2**256 - 1]
    for mask in masks:
        halves = [half for members in classes for half in (members & mask, members & ~mask)]
        classes = [half for half in halves if half]
    within = {mask: [i for i, members in enumerate(classes) if members & mask] for mask in masks}
    rows = []
    for edges in states:
        row = [DEAD] * len(classes)
        for mask, target in edges:
            for i in within[mask]:
                row[i] = target
        rows.append(tuple(row))
    class_of = bytearray(256)
    for number, members in enumerate(classes):
        for byte in range(256):
            if members >> byte & 1:
                class_of[byte] = number
    return rows, bytes(class_of)


def _without_dead_ends(rows: Rows, final: list[bool]) -> tuple[Rows, list[bool]]:
    """The states that lead to the end, in the same order."""
    edges = ((state, to) for state, row in enumerate(rows) for to in set(row) if to != DEAD)
    live = reaching(edges, final)
    if not live[0]:
        raise ConstraintError("no text satisfies the constraint: its parts contradict each other")
    kept = [state for state, lives in enumerate(live) if lives]
    new_number = {state: number for number, state in enumerate(kept)}
    shorter = [tuple(new_number.get(target, DEAD) for target in rows[state]) for state in kept]
    return shorter, [final[state] for state in kept]


def _different_columns(rows: Rows, class_of: bytes) -> tuple[Rows, bytes]:
    """Join the classes of bytes that lead to the same states everywhere."""
    number_of: dict[tuple[int, ...], int] = {}
    joined = [number_of.setdefault(column, len(number_of)) for column in zip(*rows, strict=True)]
    return list(zip(*number_of, strict=True)), bytes(joined[which] for which in class_of)


def reaching(edges: Iterable[tuple[int, int]], final: Sequence[bool]) -> list[bool]:
    """The nodes of a graph with a path to a final one, themselves included, (n,)."""
    before = defaultdict(list)
    for source, target in edges:
        before[target].append(source)
    reached = list(final)
    todo = [node for node, is_final in enumerate(final) if is_final]
    while todo:
        for source in before[todo.pop()]:
            if not reached[source]:
                reached[source] = True
                todo.append(source)
    return reached


def _merge(rows: Rows, final: list[bool]) -> list[int]:
    """The block of each state: two are in one block if the same strings lead on from both.

    A block splits the others: in each of them, the states that some byte takes into it from those
    that it does not. Only the smaller half of a split block must be looked at again.
    """
    incoming = [defaultdict(set) for _ in rows[0]]  # of each class of bytes
    for state, row in enumerate(rows):
        for sources, target in zip(incoming, row, strict=True):
            if target != DEAD:
                sources[target].add(state)
    halves = ({s for s, ends in enumerate(final) if ends == side} for side in (True, False))
    blocks = [half for half in halves if half]
    block_of = [0] * len(final)
    for number, block in enumerate(blocks):
        for state in block:
            block_of[state] = number
    todo = set(range(len(blocks)))
    while todo:
        splitter = tuple(blocks[todo.pop()])
        for sources in incoming:
            touched = defaultdict(set)
            for target in splitter:
                for state in sources.get(target, ()):
                    touched[block_of[state]].add(state)
            for number, inside in touched.items():
                if len(inside) == len(blocks[number]):
                    continue
                blocks[number] -= inside
                for state in inside:
                    block_of[state] = len(blocks)
                blocks.append(inside)
                smaller = len(inside) <= len(blocks[number])
                todo.add(len(blocks) - 1 if smaller or number in todo else number)
    return block_of
