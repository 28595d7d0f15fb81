"""How CommonsenseQA was made, on a graph small enough to read: from edges to five options.

Source: Talmor et al. 2019, "CommonsenseQA", section 3, without the questions that people write.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

TARGETS = 3
VAGUE = ("RelatedTo", "IsA")  # relations that the paper leaves out as too general


@dataclass(frozen=True)
class Edge:
    """A fact of a concept graph, such as Edge("river", "AtLocation", "bridge")."""

    source: str
    relation: str
    target: str


@dataclass(frozen=True)
class QuestionSet:
    """A source, and three targets that have one relation to it."""

    source: str
    relation: str
    targets: tuple[str, ...]


def question_sets(edges: Sequence[Edge]) -> list[QuestionSet]:
    """All sets of three targets that have one relation, none of `VAGUE`, to one source."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for edge in dict.fromkeys(edges):
        if edge.relation not in VAGUE:
            grouped.setdefault((edge.source, edge.relation), []).append(edge.target)
    return [
        QuestionSet(source, relation, chosen)
        for (source, relation), targets in grouped.items()
        for chosen in combinations(targets, TARGETS)
    ]


def five_options(
    chosen: QuestionSet, invented: str, edges: Sequence[Edge], seed: int
) -> tuple[str, ...]:
    """The three targets, another one of the same source, and an invented one, in random order."""
    near = [
        edge.target
        for edge in dict.fromkeys(edges)
        if (edge.source, edge.relation) == (chosen.source, chosen.relation)
    ]
    if invented in near:
        raise ValueError(
            f"{invented!r} is a target of {chosen.source!r} in the graph, so it may be a right "
            "answer: invent another option"
        )
    further = [target for target in near if target not in chosen.targets]
    if not further:
        raise ValueError(
            f"the graph has no fourth target with {chosen.relation!r} of {chosen.source!r}: add "
            "an edge, or choose another question set"
        )
    rng = Random(seed)
    options = [*chosen.targets, rng.choice(further), invented]
    rng.shuffle(options)
    return tuple(options)
