"""The search behind METEOR's alignment: left to right, the best way to each state, with bounds.

A state is what the rest of an alignment can depend on: which reference words are taken (of those
that a later word could want), and which reference word would go on with the current chunk. The
worth of an alignment is one integer, in which a match outweighs all chunks, and a chunk all
distances; so the largest worth is the alignment that `meteor_align` asks for.

Candidates are, for each word of the hypothesis, pairs (j, stage) as `match_candidates` gives them.
Chapter: metrics/meteor.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest

TRIED = 6  # new chunks that a beam tries at one word, the most promising first
Candidates = Sequence[Sequence[tuple[int, int]]]


class Search:
    """Candidates prepared for `run`: what a match is worth, quotas, and bounds on what is to come.

    staged: exact matches count before stems, stems before synonyms; otherwise an exact match
    counts 2, any other 1.

    >>> worth, path = Search([[(1, 0)], [(0, 0), (2, 0)]], staged=True).run(limit=10)
    >>> path                                                 # ((None, i, j, stage), i, j, stage)
    ((None, 0, 1, 0), 1, 2, 0)
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
        self.most = (  # no alignment has matches that are worth more
            sum(
                g * m for g, m in zip(self.gain, (exact, stems - exact, every - stems), strict=True)
            )
            if staged
            else match * (exact + every)
        )
        runs: dict[tuple[int, int], int] = {}
        for i in reversed(range(n)):
            for j, _ in candidates[i]:
                runs[i, j] = 1 + runs.get((i + 1, j + 1), 0)
        self.options = [  # long runs first, then near ones: a beam looks only at the first few
            sorted(options, key=lambda option: (-runs[i, option[0]], abs(i - option[0])))
            for i, options in enumerate(candidates)
        ]
        self.wanted = [0]  # by position, bit j: a word from here on may go with reference word j
        for options in reversed(candidates):
            self.wanted.append(self.wanted[-1] | _mask(options, 2))
        self.wanted.reverse()
        self.ahead = self._chunks_ahead()

    def run(self, limit: int, at_least: int | None = None) -> tuple[int, tuple | None] | None:
        """The best alignment found: its worth, and its matches as links (earlier, i, j, stage).

        Without `at_least` it is a beam search, which keeps the `limit` most promising states.
        at_least: the worth of a known alignment. The search is then exact, drops what can't reach
        that, and gives None if it would have to keep more than `limit` states at one position.
        """
        beam = at_least is None
        states: dict = {(-1, 0): (0, 0, 0, None)}  # (j that goes on, taken): see `enter`
        for i, options in enumerate(self.options):
            following: dict = {}
            wanted, ahead = self.wanted[i + 1], self.ahead[i + 1]

            def enter(key, worth, cost, taken, path, following=following, ahead=ahead):
                """Keep a state if it is the best way to it and can still be the best of all."""
                if key in following and following[key][0] >= worth:
                    return
                if beam or self.most - cost - self.chunk * ahead[key[0]] >= at_least:
                    following[key] = (worth, cost, taken, path)

            for (goes_on, _), (worth, cost, taken, path) in states.items():
                tried = 0
                for j, stage in options:
                    now = taken | 1 << j
                    if now == taken or (beam and tried >= TRIED and j != goes_on):
                        continue
                    if self._short(i, stage, now):
                        continue
                    tried += 1
                    price = abs(i - j) + self.chunk * (j != goes_on)
                    onward = j + 1 if j + 1 in ahead and not now >> (j + 1) & 1 else -1
                    value = worth + self.gain[stage] - price
                    link = (path, i, j, stage)
                    enter((onward, now & wanted), value, cost + price, now, link)
                if not self._short(i, 3, taken):  # the word may be left out
                    enter((-1, taken & wanted), worth, cost, taken, path)
            if len(following) > limit:
                if not beam:
                    return None
                following = dict(
                    nlargest(
                        limit,
                        following.items(),
                        key=lambda item: item[1][0] - self.chunk * ahead[item[0][0]],
                    )
                )
            states = following
        worth, _, _, path = max(states.values(), key=lambda state: state[0])
        return worth, path

    def _short(self, i: int, stage: int, taken: int) -> bool:
        """Whether so few of a group's reference words are taken that its quota is out of reach."""
        return any(
            stage > level and (taken & mask).bit_count() < need
            for level, mask, need, _ in self.quotas[i]
        )

    def _chunks_ahead(self) -> list[dict[int, int]]:
        """By position, and by reference word that goes on (-1: none): how many chunks still begin.

        A lower bound: it is counted as though a reference word could be taken twice.
        """
        ahead: list[dict[int, int]] = [{-1: 0}]
        for i in reversed(range(len(self.options))):
            after = ahead[-1]
            onward = {j: after.get(j + 1, after[-1]) for j, _ in self.options[i]}
            least = 1 + min(onward.values(), default=len(self.options))
            if not any(always for *_, always in self.quotas[i]):  # the word may be left out
                least = min(least, after[-1])
            ahead.append({j: min(chunks, least) for j, chunks in onward.items()} | {-1: least})
        return ahead[::-1]


def most_matches(candidates: Candidates) -> int:
    """How many words can be matched at once, whatever the stage: a largest bipartite matching.

    Found by augmenting paths (Berge 1957).

    >>> most_matches([[(0, 0), (1, 2)], [(0, 2)], []])
    2
    """
    owner: dict[int, int] = {}  # reference word -> the hypothesis word that has it
    for start in range(len(candidates)):
        came_from: dict[int, int] = {}  # reference word -> the hypothesis word that asked for it
        queue, free = [start], None
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
        while free is not None:  # hand over along the path
            i = came_from[free]
            owner[free], free = i, next((j for j, own in owner.items() if own == i), None)
    return len(owner)


def _mask(options: Sequence[tuple[int, int]], level: int) -> int:
    """Bit j is set for each reference word j that is matched at this stage or an earlier one."""
    return sum(1 << j for j, stage in options if stage <= level)


def _quotas(candidates: Candidates, enforced: bool) -> tuple[list[list[tuple]], list[int]]:
    """For each word (stage, reference words, how many must be taken by now, whether it is always
    matched), so that the most matches stay in reach; and the most matches of stages 0 and 0 to 1.

    Words with the same candidates up to a stage form a group (spelt alike, or of one stem), of
    which as many are matched as the smaller side has. Counted jointly, with synonyms, a group may
    do better by fewer; then nothing is enforced.
    """
    quotas: list[list[tuple]] = [[] for _ in candidates]
    most = []
    for level in (0, 1):
        groups = [_mask(options, level) for options in candidates]
        total = Counter(mask for mask in groups if mask)
        most.append(sum(min(count, mask.bit_count()) for mask, count in total.items()))
        left = Counter(total)
        for quota, mask in zip(quotas, groups, strict=True):
            left[mask] -= 1  # words of this group that are still to come
            need = min(total[mask], mask.bit_count()) - left[mask]
            if enforced and mask and need > 0:
                quota.append((level, mask, need, total[mask] <= mask.bit_count()))
    return quotas, most
