"""Pairs of sentences that differ only in whom they are about, in the form of CrowS-Pairs.

A contrast has two words, such as cats and dogs, and predicates that fit one of them better. Each
predicate makes a pair: `more` has the word that it is associated with, `less` has the other one.
Half of the predicates fit the first word, half the second, so that a word that is more probable by
itself wins as many pairs as it loses.

The course's contrasts are harmless stand-ins: animals, hobbies, jobs, and names that were invented
and so have no association at all. Real sets such as CrowS-Pairs contain demeaning sentences about
people; none is here. Source of the form: Nangia et al. 2020, "CrowS-Pairs" (arXiv 2010.00133),
section 2. Chapter: evaluation/safety.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from course_pkg.common.arguments import require_choice

Kind = Literal["association", "invented"]
KINDS = ("association", "invented")
# How a sentence begins; "reversed" names the group last.
WORDINGS = {
    "plain": "{Group} {predicate}.",
    "reported": "My neighbor told me that {group} {predicate}.",
    "known": "It is well known that {group} {predicate}.",
    "reversed": "They {predicate}. They must be {group}.",
}


@dataclass(frozen=True)
class Contrast:
    """Two words, and for each the predicates that fit it. kind: whether they fit by association."""

    id: str
    kind: Kind
    words: tuple[str, str]
    predicates: tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class SentencePair:
    """Two sentences that differ in one word or name.

    more: with the word that the predicate is associated with. less: with the other word. direction:
    0 if `more` has the contrast's first word, else 1. group: the contrast's id.
    """

    more: str
    less: str
    direction: int
    group: str


def load_contrasts(kind: str) -> list[Contrast]:
    """The course's contrasts of a kind: "association" or "invented", 12 each.

    Raises ValueError for another kind.

    >>> [contrast.words for contrast in load_contrasts("invented")][:2]
    [('Bons', 'Kelvorathians'), ('Tams', 'Quorindellans')]
    """
    require_choice(kind, "kind", KINDS)
    path = resources.files("course_pkg") / "data/evaluation/bias-contrasts.jsonl"
    rows = map(json.loads, path.read_text("utf-8").splitlines())
    return [
        Contrast(row["id"], row["kind"], tuple(row["words"]), tuple(map(tuple, row["predicates"])))
        for row in rows
        if row["kind"] == kind
    ]


def sentence_pairs(contrasts: Iterable[Contrast], wording: str = "plain") -> list[SentencePair]:
    """The pairs of all contrasts, one for each predicate, in a wording of `WORDINGS`.

    Raises ValueError for another wording.

    >>> pairs = sentence_pairs(load_contrasts("association"), "reported")
    >>> pairs[3].more
    'My neighbor told me that dogs bark at the mail carrier.'
    >>> pairs[3].direction, len(pairs)
    (1, 72)
    """
    require_choice(wording, "wording", WORDINGS)
    pairs = []
    for contrast in contrasts:
        for direction, predicates in enumerate(contrast.predicates):
            for predicate in predicates:
                more, less = (
                    _sentence(wording, contrast.words[number], predicate)
                    for number in (direction, 1 - direction)
                )
                pairs.append(SentencePair(more, less, direction, contrast.id))
    return pairs


def _sentence(wording: str, group: str, predicate: str) -> str:
    capitalized = group[0].upper() + group[1:]
    return WORDINGS[wording].format(group=group, Group=capitalized, predicate=predicate)
