"""How CommonsenseQA was made, on a graph small enough to read: from edges to five options.

    1. keep the edges whose relation says something specific (not "RelatedTo")
    2. group them: three targets that have the same relation to one source are a question set
    3. for each target a person writes a question that mentions the source, and that the other two
       targets don't answer
    4. two further wrong options: another concept of the graph, and one that the author invents

All options have the same relation to the source, so that association alone can't tell them apart:
step 3 is what makes the questions hard, and a program can't do it. Afterwards, in the paper, other
workers answer the questions, and those on which they disagree are removed.

Source: Talmor et al. 2019, "CommonsenseQA: A Question Answering Challenge Targeting Commonsense
Knowledge", section 3. Chapter: evaluation/domains.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from course_pkg.common.arguments import require_list, require_string

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


def question_sets(edges: Sequence[Edge], vague: Collection[str] = VAGUE) -> list[QuestionSet]:
    """All sets of three targets that have the same relation to the same source.

    edges: the graph; an edge that occurs twice counts once. vague: relations to leave out.
    The sets are in the order in which their first edges appear.

    >>> edges = [Edge("river", "AtLocation", at) for at in ("bridge", "valley", "waterfall")]
    >>> edges.append(Edge("river", "RelatedTo", "water"))
    >>> question_sets(edges)[0].targets
    ('bridge', 'valley', 'waterfall')
    """
    require_list(edges, "edges", "put the edges into [ ]")
    grouped: dict[tuple[str, str], list[str]] = {}
    for edge in dict.fromkeys(edges):
        if edge.relation not in vague:
            grouped.setdefault((edge.source, edge.relation), []).append(edge.target)
    return [
        QuestionSet(source, relation, chosen)
        for (source, relation), targets in grouped.items()
        for chosen in combinations(targets, TARGETS)
    ]


def five_options(
    chosen: QuestionSet, invented: str, edges: Sequence[Edge], seed: int
) -> tuple[str, ...]:
    """The three targets, one more target of the same source, and an invented one, in random order.

    The answer is one of the three targets; which one depends on the question that a person wrote.
    invented: the wrong option that the author adds. Raises ValueError if it is in the graph as a
    target of this source, or if the graph has no further target with the same relation.

    >>> places = ("bridge", "valley", "waterfall", "bank")
    >>> edges = [Edge("river", "AtLocation", at) for at in places]
    >>> sorted(five_options(question_sets(edges)[0], "tunnel", edges, seed=0))
    ['bank', 'bridge', 'tunnel', 'valley', 'waterfall']
    """
    require_string(invented, "invented")
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
