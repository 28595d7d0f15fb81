"""`constrained`: automata and vocabularies as plain data, and the course's automata of them.

`transitions` has for each state a dict from a byte to the next state, `accepting` lists the states
where the text may end, and state 0 is the first. They are compiled from regular expressions; then
all states but the first change places, so that nothing can be guessed from their numbers.

Chapter: exercises.
"""

from collections.abc import Iterable
from random import Random
from typing import Any

from course_pkg.serving.constrained.automaton import DEAD, Automaton, build_automaton, reaching
from course_pkg.serving.constrained.regex import parse

Inputs = dict[str, Any]
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
    found = []
    for state in range(len(inputs["transitions"])):
        reached = {t: automaton.run(inputs["tokens"][t], state) for t in used}
        found.append({t: target for t, target in reached.items() if target >= 0})
    return found


def trimmed_guide(inputs: Inputs) -> list[dict[int, int]]:
    """For each state the tokens that may come next, and where they lead; the end token to −1."""
    after = after_tokens(inputs)
    edges = [(state, target) for state, leads in enumerate(after) for target in leads.values()]
    usable = reaching(edges, [state in inputs["accepting"] for state in range(len(after))])
    guide = [{t: target for t, target in leads.items() if usable[target]} for leads in after]
    for state in inputs["accepting"]:
        guide[state][inputs["end"]] = FINISHED
    return guide
