"""The smallest deterministic automaton of an expression: a table of 256 bytes for each state.

A state of the first automaton is an expression, "what may still come"; the derivative by a byte is
the next one. Two different expressions may be the same language, so the states are then merged
(Hopcroft 1971). States from which no string leads to the end are left out.

Sources: Brzozowski (1964); Hopcroft (1971), An n log n algorithm for minimizing states in a finite
automaton. Chapter: evaluation/constrained-output.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from course_pkg.constrained.expression import NOTHING, Derivatives, Expression

MOST_STATES = 10_000  # a table of 10 MB, and masks of about 60 MB for SmolLM2
MOST_WORK = 2_000_000  # parts of expressions that are looked at, which takes a few seconds
DEAD = -1


class ConstraintError(ValueError):
    """A constraint that no text can satisfy, or that is too large."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """States 0 to n - 1; 0 is the first.

    transitions: (states, 256) int32, the next state by each byte, DEAD (-1) if none can follow.
    accepting: (states,) bool, where the text may end.
    """

    transitions: np.ndarray
    accepting: np.ndarray

    def run(self, data: bytes, state: int = 0) -> int:
        """The state after these bytes, DEAD if they cannot follow.

        >>> from course_pkg.constrained.regex import parse
        >>> automaton = build_automaton(parse("ab|cd"))
        >>> automaton.run(b"cb"), bool(automaton.accepting[automaton.run(b"ab")])
        (-1, True)
        """
        for byte in data:
            if state == DEAD:
                break
            state = int(self.transitions[state, byte])
        return state


def build_automaton(expression: Expression) -> Automaton:
    """The smallest automaton whose every state leads to the end.

    Raises ConstraintError if no string belongs to the language, or if the automaton needs more than
    MOST_STATES states before they are merged, or more than MOST_WORK to find them.
    """
    transitions, accepting = _explore(expression)
    transitions, accepting = _without_dead_ends(transitions, accepting)
    columns, column_of = np.unique(transitions, axis=1, return_inverse=True)  # (n, classes)
    block_of = np.array(_merge(columns, accepting))  # (n,)
    # Numbered by their first state, so that block 0 has the start.
    _, firsts, numbered = np.unique(block_of, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    number_of = np.append(rank[numbered], DEAD).astype(np.int32)  # the last is for DEAD
    kept = firsts[order]
    return Automaton(number_of[columns[kept]][:, column_of.reshape(-1)], accepting[kept])


def _explore(expression: Expression) -> tuple[np.ndarray, np.ndarray]:
    """All derivatives of the expression, as (n, 256) next states, and (n,) whether it may end."""
    derivatives = Derivatives()
    number_of = {expression: 0}
    states = [expression]
    rows = []
    for state in states:  # which grows
        if len(states) > MOST_STATES or derivatives.work > MOST_WORK:
            raise ConstraintError(
                f"the constraint needs more than {MOST_STATES} states, or too much work to find "
                "them: shorten its counted repetitions or patterns"
            )
        row = np.full(256, DEAD, np.int32)
        # By their first bytes, so that states have the same numbers in each process.
        for mask in sorted(derivatives.classes(state), key=lambda mask: mask & -mask):
            target = derivatives.by(state, (mask & -mask).bit_length() - 1)
            if target is NOTHING:
                continue
            if target not in number_of:
                number_of[target] = len(states)
                states.append(target)
            packed = np.frombuffer(mask.to_bytes(32, "little"), np.uint8)
            row[np.unpackbits(packed, bitorder="little").astype(bool)] = number_of[target]
        rows.append(row)
    return np.array(rows), np.array([state.nullable for state in states])


def _without_dead_ends(
    transitions: np.ndarray, accepting: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The states that lead to the end, in the same order."""
    sources, targets = np.unique(_edges(transitions), axis=0).T
    live = reaching(sources, targets, accepting)
    if not live[0]:
        raise ConstraintError("no text satisfies the constraint: its parts contradict each other")
    number_of = np.append(np.where(live, np.cumsum(live) - 1, DEAD), DEAD).astype(np.int32)
    return number_of[transitions[live]], accepting[live]


def _edges(transitions: np.ndarray) -> np.ndarray:
    """(edges, 2): states and next states, with repetitions."""
    states, bytes_ = np.nonzero(transitions != DEAD)
    return np.stack([states, transitions[states, bytes_]], axis=1)


def reaching(sources: np.ndarray, targets: np.ndarray, final: np.ndarray) -> np.ndarray:
    """(n,) bool: the nodes of a graph with a path to a final one, themselves included.

    sources, targets: the ends of each edge. final: (n,) bool.

    >>> reaching(np.array([0, 1]), np.array([1, 0]), np.array([False, True, False])).tolist()
    [True, True, False]
    """
    before = defaultdict(list)
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        before[target].append(source)
    found = final.copy()
    todo = np.flatnonzero(final).tolist()
    while todo:
        for source in before[todo.pop()]:
            if not found[source]:
                found[source] = True
                todo.append(source)
    return found


def _merge(columns: np.ndarray, accepting: np.ndarray) -> list[int]:
    """The block of each state: two are in one block if the same strings lead on from both.

    A block splits the others: in each of them, the states that some byte takes into it from those
    that it does not. Only the smaller half of a split block must be looked at again.
    """
    incoming = [defaultdict(set) for _ in range(columns.shape[1])]  # of each class of bytes
    for state, row in enumerate(columns.tolist()):
        for sources, target in zip(incoming, row, strict=True):
            if target != DEAD:
                sources[target].add(state)
    halves = (np.flatnonzero(accepting).tolist(), np.flatnonzero(~accepting).tolist())
    blocks = [set(half) for half in halves if half]
    block_of = [0] * len(accepting)
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
