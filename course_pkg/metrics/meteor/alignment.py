"""METEOR's alignment: which word of one text matches which word of the other, in few chunks.

The best alignment matches as much as possible; then it has the fewest chunks (runs that are
contiguous and in the same order in both texts), then the smallest sum of distances ``|i - j|``. "As
much as possible" means, staged (2005), as many exact matches as possible, then stems, then
synonyms; jointly (1.5), the largest sum of matches, where inexact ones count half. The fewest
chunks are NP-hard to find, so the search is exact up to `EXACT_STATES` only.

Sources: Banerjee & Lavie 2005, section 2; Denkowski & Lavie 2014, section 2.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise

from course_pkg.metrics.tokenizers import porter_stem
from course_pkg.metrics.wordnet import Synonyms

EXACT_STATES = 3000  # partial alignments at one position; with more, a beam search is used
BEAM = 40  # the width of the Java tool's beam
TRIED = 6  # how many new chunks a beam search tries at one word, the most promising first
STAGES = ("exact", "stem", "synonym")
Candidates = Sequence[Sequence[tuple[int, int]]]
ValueAndPath = tuple[int, tuple | None]  # an alignment's value, and its matches


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


class Search:
    """The search from left to right, keeping the best path to each state.

    A state is what the rest of an alignment depends on: which reference words are taken (only those
    that a later word may match), and which one would continue the current chunk. The value of an
    alignment is one integer, in which a match outweighs all chunks, a chunk all distances.
    staged: an exact match outweighs all stems, a stem all synonyms; otherwise an exact match counts
    2 and any other match 1.
    """

    def __init__(self, candidates: Candidates, staged: bool) -> None:
        n = len(candidates)
        width = 1 + max((j for options in candidates for j, _ in options), default=0)
        self.chunk = n * max(n, width) + 1  # more than all distances together
        match = self.chunk * (n + 1)  # more than all chunks together
        shares = ((n + 1) ** 2, n + 1, 1) if staged else (2, 1, 1)
        self.gain = [match * share for share in shares]  # of an exact match, a stem, a synonym
        synonyms = any(stage == 2 for options in candidates for _, stage in options)
        self.quotas, (exact, stems) = _quotas(candidates, enforced=staged or not synonyms)
        every = most_matches(candidates) if synonyms else stems
        if staged:  # no alignment has matches with a larger value
            most = (exact, stems - exact, every - stems)
            self.bound = sum(g * m for g, m in zip(self.gain, most, strict=True))
        else:
            self.bound = match * (exact + every)
        runs: dict[tuple[int, int], int] = {}
        for i in reversed(range(n)):
            for j, _ in candidates[i]:
                runs[i, j] = 1 + runs.get((i + 1, j + 1), 0)
        self.options = [  # long runs first, then near ones: a beam search tries only the first few
            sorted(options, key=lambda option: (-runs[i, option[0]], abs(i - option[0])))
            for i, options in enumerate(candidates)
        ]
        self.needed = [0]  # by position; bit j: a word from here on may match reference word j
        for options in reversed(candidates):
            self.needed.append(self.needed[-1] | _mask(options, 2))
        self.needed.reverse()
        self.ahead = self._chunks_ahead()

    def run(self, limit: int, at_least: int | None = None) -> ValueAndPath | None:
        """Find the best alignment: its value, and its matches as (earlier, i, j, stage).

        A beam search keeps `limit` states. `at_least`, the value of a known alignment, makes it
        exact: it drops states that can't reach this value, and returns None if more than `limit`
        remain.
        """
        beam = at_least is None
        states: dict = {(-1, 0): (0, 0, 0, None)}  # (continuing j, taken): see `enter`
        for i, options in enumerate(self.options):
            following: dict = {}
            needed = self.needed[i + 1]
            ahead = self.ahead[i + 1]

            def enter(key, value, cost, taken, path, following=following, ahead=ahead):
                if key in following and following[key][0] >= value:
                    return
                if beam or self.bound - cost - self.chunk * ahead[key[0]] >= at_least:
                    following[key] = (value, cost, taken, path)

            for (continues, _), (value, cost, taken, path) in states.items():
                tried = 0
                for j, stage in options:
                    now = taken | 1 << j
                    if now == taken or (beam and tried >= TRIED and j != continues):
                        continue
                    if self._short(i, stage, now):
                        continue
                    tried += 1
                    price = abs(i - j) if j == continues else abs(i - j) + self.chunk
                    onward = j + 1 if j + 1 in ahead and not now >> (j + 1) & 1 else -1
                    gained = value + self.gain[stage] - price
                    link = (path, i, j, stage)
                    enter((onward, now & needed), gained, cost + price, now, link)
                if not self._short(i, 3, taken):  # the word may be left unmatched
                    enter((-1, taken & needed), value, cost, taken, path)
            if len(following) > limit:
                if not beam:
                    return None

                def promise(item, ahead=ahead):
                    return item[1][0] - self.chunk * ahead[item[0][0]]

                following = dict(nlargest(limit, following.items(), key=promise))
            states = following
        value, _, _, path = max(states.values(), key=lambda state: state[0])
        return value, path

    def _short(self, i: int, stage: int, taken: int) -> bool:
        """Whether too few of a group's reference words are taken to still reach its quota."""
        return any(
            stage > level and (taken & mask).bit_count() < need
            for level, mask, need, _ in self.quotas[i]
        )

    def _chunks_ahead(self) -> list[dict[int, int]]:
        """The fewest chunks that still begin, by position and next word (-1: none)."""
        ahead: list[dict[int, int]] = [{-1: 0}]
        for i in reversed(range(len(self.options))):
            after = ahead[-1]
            onward = {j: after.get(j + 1, after[-1]) for j, _ in self.options[i]}
            least = 1 + min(onward.values(), default=len(self.options))
            if not any(always for *_, always in self.quotas[i]):  # the word may be left unmatched
                least = min(least, after[-1])
            ahead.append({j: min(chunks, least) for j, chunks in onward.items()} | {-1: least})
        return ahead[::-1]


def most_matches(candidates: Candidates) -> int:
    """Count how many words can be matched, at any stage, by augmenting paths (Berge 1957)."""
    owner: dict[int, int] = {}  # reference word -> the hypothesis word matched with it
    for start in range(len(candidates)):
        came_from: dict[int, int] = {}  # reference word -> the hypothesis word that led to it
        queue = [start]
        free = None
        for i in queue:
            for j, _ in candidates[i]:
                if j not in came_from:
                    came_from[j] = i
                    if j not in owner:
                        free = j
                        break
                    queue.append(owner[j])
            if free is not None:
                break
        while free is not None:  # move the matches along the path
            i = came_from[free]
            before = next((j for j, word in owner.items() if word == i), None)
            owner[free] = i
            free = before
    return len(owner)


def _mask(options: Sequence[tuple[int, int]], level: int) -> int:
    """Set bit j for each reference word j that matches at this stage or an earlier one."""
    return sum(1 << j for j, stage in options if stage <= level)


def _quotas(candidates: Candidates, enforced: bool) -> tuple[list[list[tuple]], list[int]]:
    """Quotas that keep the largest number of matches reachable, and those numbers.

    Words with the same candidates up to a stage form a group; as many of it are matched as its
    smaller side has words. A quota is (stage, mask of reference words, how many must be taken by
    now, whether the word is always matched); the numbers are the most matches of stage 0, and of
    stages 0 and 1. Jointly counted synonyms may be worth fewer matches: then none is enforced.
    """
    quotas: list[list[tuple]] = [[] for _ in candidates]
    most = []
    for level in (0, 1):
        groups = [_mask(options, level) for options in candidates]
        total = Counter(mask for mask in groups if mask)
        most.append(sum(min(count, mask.bit_count()) for mask, count in total.items()))
        left = Counter(total)
        for quota, mask in zip(quotas, groups, strict=True):
            left[mask] -= 1  # words of this group at later positions
            need = min(total[mask], mask.bit_count()) - left[mask]
            if enforced and mask and need > 0:
                quota.append((level, mask, need, total[mask] <= mask.bit_count()))
    return quotas, most
