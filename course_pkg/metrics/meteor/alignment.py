"""METEOR's alignment: which word of one text matches which word of the other, in few chunks.

Each word is matched at most once. The best alignment matches as much as possible; then it has the
fewest chunks (runs that are contiguous and in the same order in both texts), then the smallest sum
of distances |i - j|. "As much as possible" means, staged (2005), as many exact matches as possible,
then stems, then synonyms; jointly (1.5), the largest sum of matches, where inexact ones count half.
The fewest chunks are NP-hard to find, so the search is exact up to `EXACT_STATES` only.

Sources: Banerjee & Lavie 2005, section 2; Denkowski & Lavie 2014, section 2, and the Java tool 1.5,
whose tie rule all versions use here. Chapter: metrics/meteor.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from course_pkg.metrics.meteor.search import Search
from course_pkg.metrics.tokenizers import porter_stem
from course_pkg.metrics.wordnet import Synonyms

EXACT_STATES = 3000  # partial alignments at one position; with more, a beam search is used
BEAM = 40  # the width of the Java tool's beam
STAGES = ("exact", "stem", "synonym")


@dataclass(frozen=True)
class MatchedPair:
    """A match of two words, given by their positions in the hypothesis and the reference."""

    hypothesis: int
    reference: int
    stage: str


@dataclass(frozen=True)
class Alignment:
    """Matches from left to right in the hypothesis; optimal: whether the search was exact."""

    matches: tuple[MatchedPair, ...]
    chunks: int
    optimal: bool


def count_chunks(matches: Sequence[tuple[int, int]]) -> int:
    """Count the runs of matches (i, j) that are neighbors, in the same order, in both texts."""
    ordered = sorted(matches)
    joined = [pair for pair in pairwise(ordered) if pair[1] == (pair[0][0] + 1, pair[0][1] + 1)]
    return len(ordered) - len(joined)


def match_candidates(
    hypothesis: Sequence[str],
    reference: Sequence[str],
    stem: bool = True,
    source: Synonyms | None = None,
) -> list[list[tuple[int, int]]]:
    """List for each word of the hypothesis the reference words that it may match: (j, stage).

    stage: the first one that matches them: 0 the same word, 1 the same Porter stem (if `stem`),
    2 a common sense (if there is a `source`) of the words, not of their stems.
    """
    positions: tuple[dict, ...] = (defaultdict(list), defaultdict(list), defaultdict(list))
    for j, word in enumerate(reference):
        positions[0][word].append(j)
        if stem:
            positions[1][porter_stem(word)].append(j)
        if source:
            for sense in source.senses(word):
                positions[2][sense].append(j)
    candidates: dict[str, list[tuple[int, int]]] = {}
    for word in set(hypothesis):
        stages: dict[int, int] = dict.fromkeys(positions[0].get(word, ()), 0)
        for j in positions[1].get(porter_stem(word), ()) if stem else ():
            stages.setdefault(j, 1)
        for sense in source.senses(word) if source else ():
            for j in positions[2].get(sense, ()):
                stages.setdefault(j, 2)
        candidates[word] = sorted(stages.items())
    return [candidates[word] for word in hypothesis]


def best_alignment(
    candidates: Sequence[Sequence[tuple[int, int]]], *, staged: bool = True
) -> Alignment:
    """Find the alignment with the most matches, then the fewest chunks, then the least distance.

    candidates: see `match_candidates`. staged: matches count as in 2005; otherwise as in 1.5.

    >>> the = [(0, 0), (2, 0)]                        # reference: the cat the dog
    >>> best_alignment([the, [(3, 0)]]).matches[0]    # hypothesis: the dog
    MatchedPair(hypothesis=0, reference=2, stage='exact')
    """
    search = Search(candidates, staged)
    value, path = search.run(BEAM)
    best = search.run(EXACT_STATES, at_least=value)
    if best:
        value, path = best
    matches = []
    while path:
        path, i, j, stage = path
        matches.append(MatchedPair(i, j, STAGES[stage]))
    matches.reverse()
    chunks = count_chunks([(match.hypothesis, match.reference) for match in matches])
    return Alignment(tuple(matches), chunks, optimal=bool(best))
