"""METEOR's alignment: which word of one text goes with which of the other, in few pieces.

A word is matched at most once. Among all alignments the wanted one matches as much as possible;
among these it has the fewest chunks (runs that are contiguous and in the same order in both
texts); among these the least sum of distances |i - j|. "As much as possible" has two readings:
staged (2005), as many exact matches as possible, then stems, then synonyms; joint (1.5), the
largest sum of matches, of which inexact ones count half.

The first paper breaks ties otherwise: it takes the alignment with the fewest crossing pairs, and
settles one stage before it looks at the next. Fewest chunks is the rule of the later tool, and
serves the penalty, which counts chunks; it is used here for all versions.

Finding the fewest chunks is hard in general (it contains minimum common string partition, which is
NP-hard), so the search (`meteor_search`) is exact while at most `EXACT_STATES` partial alignments
need to be kept in mind at a position. Otherwise the `BEAM` most promising are kept, and the result
says so.

Sources: Banerjee & Lavie 2005, section 2; Denkowski & Lavie 2014, "Meteor Universal", section 2,
and the Java tool 1.5 (in which an inexact match weighs half when alignments are compared).
Chapter: metrics/meteor.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from course_pkg.metrics.meteor.search import Search
from course_pkg.metrics.meteor.wordnet import Synonyms
from course_pkg.metrics.tokenizers import porter_stem

EXACT_STATES = 3000  # partial alignments at one position, before the search turns into a beam
BEAM = 40  # as wide as the Java tool's
STAGES = ("exact", "stem", "synonym")


@dataclass(frozen=True)
class Match:
    """Word i of the hypothesis goes with word j of the reference."""

    hypothesis: int
    reference: int
    stage: str


@dataclass(frozen=True)
class Alignment:
    """Matches from left to right in the hypothesis; their chunks; whether no better one exists.

    optimal: True if the search was exact, False if it was a beam search.
    """

    matches: tuple[Match, ...]
    chunks: int
    optimal: bool


def count_chunks(matches: Sequence[tuple[int, int]]) -> int:
    """Runs of matches that are neighbors, in the same order, in both texts; 0 without matches.

    matches: pairs (i, j) of positions.
    Source: Banerjee & Lavie 2005, section 2.

    >>> count_chunks([(0, 3), (1, 4), (2, 0)])
    2
    """
    ordered = sorted(matches)
    joined = sum((i + 1, j + 1) == following for (i, j), following in pairwise(ordered))
    return len(ordered) - joined


def match_candidates(
    hypothesis: Sequence[str],
    reference: Sequence[str],
    stem: bool = True,
    source: Synonyms | None = None,
) -> list[list[tuple[int, int]]]:
    """For each word of the hypothesis, the reference words that it may go with: (j, stage).

    stage: the first that matches them; 0 the same word, 1 the same Porter stem (if `stem`), 2 a
    sense in common (if there is a `source`). Words are compared as they are, never their stems
    with synonyms. Source: Banerjee & Lavie 2005, section 2.

    >>> match_candidates(["cats", "sat"], ["cat", "sat", "cats"])
    [[(0, 1), (2, 0)], [(1, 0)]]
    """
    places: tuple[dict, ...] = (defaultdict(list), defaultdict(list), defaultdict(list))
    for j, word in enumerate(reference):
        places[0][word].append(j)
        if stem:
            places[1][porter_stem(word)].append(j)
        if source:
            for sense in source.senses(word):
                places[2][sense].append(j)
    found: dict[str, list[tuple[int, int]]] = {}
    for word in set(hypothesis):
        stages: dict[int, int] = dict.fromkeys(places[0].get(word, ()), 0)
        for j in places[1].get(porter_stem(word), ()) if stem else ():
            stages.setdefault(j, 1)
        for sense in source.senses(word) if source else ():
            for j in places[2].get(sense, ()):
                stages.setdefault(j, 2)
        found[word] = sorted(stages.items())
    return [found[word] for word in hypothesis]


def best_alignment(
    candidates: Sequence[Sequence[tuple[int, int]]],
    *,
    staged: bool = True,
    exact_states: int = EXACT_STATES,
) -> Alignment:
    """The alignment with the most matches, the fewest chunks and the least distance, in this order.

    candidates: for each word of the hypothesis the pairs (j, stage) of reference words it may go
    with; stage 0 is exact, 1 stem, 2 synonym. staged: how matches are counted (see above).
    exact_states: partial alignments to keep before giving up the guarantee; 0 is always a beam.
    Source: Denkowski & Lavie 2014, section 2.

    >>> the = [(0, 0), (2, 0)]                        # reference: the cat the dog
    >>> best_alignment([the, [(3, 0)]]).matches[0]    # hypothesis: the dog
    Match(hypothesis=0, reference=2, stage='exact')
    """
    search = Search(candidates, staged)
    worth, path = search.run(BEAM)
    found = search.run(exact_states, at_least=worth) if exact_states else None
    if found:
        worth, path = found
    matches = []
    while path:
        path, i, j, stage = path
        matches.append(Match(i, j, STAGES[stage]))
    matches.reverse()
    chunks = count_chunks([(match.hypothesis, match.reference) for match in matches])
    return Alignment(tuple(matches), chunks, optimal=bool(found))
