"""Longest common subsequences: tables, lengths and positions, with bit-parallel algorithms.

`lcs_table` and `wlcs_table` are the textbook algorithms, one cell at a time. `lcs_length` and
`lcs_positions` store a row of that table, transposed, in one Python integer: bit i - 1, for
reference token i, is 0 where the row rises by one. Each token of the hypothesis then costs three
operations on integers.

Sources: Hyyrö 2004, "Bit-parallel LCS-length computation revisited"; Lin 2004, section 4.
"""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from functools import lru_cache
from math import isqrt

Tokens = Sequence[Hashable]
FREE, CLIPPED, COUNTED = range(3)  # the states of a token in `clipped_union`
_CACHED_BITS = 2**28  # masks are cached up to 32 MiB in total; others are computed again
_KEPT_BITS = 2**26  # all rows are kept up to 8 MiB; for longer texts only some


def lcs_table(reference: Tokens, hypothesis: Tokens) -> list[list[int]]:
    """Compute the table of LCS lengths: entry [i][j] is for the first i and the first j tokens.

    >>> lcs_table(["a", "b"], ["b", "a", "b"])
    [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 2]]
    """
    table = [[0] * (len(hypothesis) + 1)]
    for token in reference:
        above = table[-1]
        row = [0]
        for j, other in enumerate(hypothesis):
            row.append(above[j] + 1 if token == other else max(above[j + 1], row[j]))
        table.append(row)
    return table


def lcs_length(reference: Tokens, hypothesis: Tokens) -> int:
    """Compute the length of the longest common subsequence, in time m * n / 64 at most.

    Source: Hyyrö 2004; the definition is Lin 2004, section 3.1.

    >>> lcs_length("the cat is on the mat".split(), "the cat sat on the mat".split())
    5
    """
    known, mask = _masks(reference)
    full = (1 << len(reference)) - 1
    row = full
    for token in filter(known.__contains__, hypothesis):
        row = _next_row(row, mask(token), full)
    return len(reference) - row.bit_count()


def lcs_positions(reference: Tokens, hypothesis: Tokens) -> list[tuple[int, int]]:
    """Find one longest common subsequence, as pairs of positions (in reference, in hypothesis).

    If there are several, it is the one that the Perl tool and rouge-score read from the table: from
    the end back, match equal tokens; otherwise skip the reference's token, unless only skipping the
    hypothesis's keeps the length. For long texts only every sqrt(n)-th row is kept.

    >>> lcs_positions("the cat is on the mat".split(), "cat mat".split())
    [(1, 0), (5, 1)]
    """
    return _read_back(len(reference), hypothesis, *_masks(reference))


def lcs_union(reference: Tokens, hypotheses: Iterable[Tokens]) -> set[int]:
    """The reference positions that are in the LCS with any hypothesis (Lin 2004, section 3.2)."""
    masks = _masks(reference)
    paths = (_read_back(len(reference), hypothesis, *masks) for hypothesis in hypotheses)
    return {i for path in paths for i, _ in path}


def clipped_union(
    references: Sequence[Sequence[str]],
    hypothesis: Sequence[Sequence[str]],
    union: Callable[[Sequence[str], Sequence[Sequence[str]]], set[int]],
) -> list[list[int]]:
    """A state for each token of each reference line: FREE, or matched: COUNTED or CLIPPED.

    A matched word is CLIPPED if it was already COUNTED as often as it occurs in the text that has
    it less often. union: finds the matched positions of a reference line, such as `lcs_union`.

    >>> clipped_union([["a", "a", "b"]], [["a"], ["x", "a"]], lcs_union)
    [[0, 2, 0]]
    """
    left = Counter(word for line in hypothesis for word in line)
    left &= Counter(word for line in references for word in line)
    lines = []
    for line in references:
        states = [FREE] * len(line)
        for i in sorted(union(line, hypothesis)):
            states[i] = COUNTED if left[line[i]] > 0 else CLIPPED
            left[line[i]] -= 1
        lines.append(states)
    return lines


def _read_back(
    length: int, hypothesis: Tokens, known: Container, mask: Callable[[Hashable], int]
) -> list[tuple[int, int]]:
    """Read the path from the rows, which change only at tokens that the reference has, `known`."""
    shared = [j for j, token in enumerate(hypothesis) if token in known]
    full = (1 << length) - 1
    i = length
    k = len(shared)
    stride = k + 1 if i * k <= _KEPT_BITS else isqrt(k) + 1
    kept = [full]  # rows 0, stride, 2 * stride, ...
    if stride <= k:
        row = full
        for number, j in enumerate(shared, start=1):
            row = _next_row(row, mask(hypothesis[j]), full)
            if number % stride == 0:
                kept.append(row)
    pairs = []
    first = k + 1  # the number of the first row in `rows`
    after = len(hypothesis)
    while i and k:
        if k < first:
            first = k - k % stride
            row = kept[first // stride]
            rows = [row]
            for j in shared[first : first + stride]:
                row = _next_row(row, mask(hypothesis[j]), full)
                rows.append(row)
        # Without a rise of the row, it is as long without this token of the reference: skip it.
        rises = ~rows[k - first]
        k -= 1
        j = shared[k]
        if j + 1 < after:  # tokens that the reference lacks
            i = _last(rises, i)
        equal = mask(hypothesis[j])
        i = _last(rises | equal, i)
        if i and equal >> (i - 1) & 1:
            i -= 1
            pairs.append((i, j))
        after = j
    return pairs[::-1]


def _last(bits: int, i: int) -> int:
    """The number, from 1, of the last of the first i bits that is 1; 0 if there is none."""
    return (bits & ((1 << i) - 1)).bit_length()


def _next_row(row: int, matches: int, full: int) -> int:
    hit = row & matches
    return ((row + hit) | (row - hit)) & full


def _masks(reference: Tokens) -> tuple[Container, Callable[[Hashable], int]]:
    """The reference's tokens, and a function from one of them to its positions, as bits."""
    if len(reference) <= 1024:  # so short an integer is shifted faster than its bytes are filled
        masks: dict[Hashable, int] = {}
        for position, token in enumerate(reference):
            masks[token] = masks.get(token, 0) | 1 << position
        return masks, masks.__getitem__
    positions: dict[Hashable, list[int]] = {}
    for position, token in enumerate(reference):
        positions.setdefault(token, []).append(position)
    size = len(reference) // 8 + 1

    @lru_cache(maxsize=_CACHED_BITS // (8 * size))
    def mask(token: Hashable) -> int:
        bits = bytearray(size)
        for position in positions[token]:
            bits[position >> 3] |= 1 << (position & 7)
        return int.from_bytes(bits, "little")

    return positions, mask


def wlcs_table(
    reference: Tokens, hypothesis: Tokens, weight: float
) -> tuple[list[list[float]], list[list[str]]]:
    """Compute the table of weighted LCS lengths, and each cell's step: "match", "up" or "left".

    A run of k matches that are neighbors in both texts counts k ** weight. As in the paper, the
    recurrence always uses a match, so the result may be smaller than the largest weight of a
    common subsequence. Source: Lin 2004, section 4, the algorithm before equation 13.
    """
    width = len(hypothesis) + 1
    table = [[0.0] * width]
    steps = [[""] * width]
    run = [0] * width
    for token in reference:
        above = table[-1]
        row = [0.0]
        row_steps = [""]
        runs = [0]
        for j, other in enumerate(hypothesis):
            if token == other:
                k = run[j]
                row.append(above[j] + float(k + 1) ** weight - float(k) ** weight)
                row_steps.append("match")
                runs.append(k + 1)
            else:
                up = above[j + 1] >= row[j]
                row.append(above[j + 1] if up else row[j])
                row_steps.append("up" if up else "left")
                runs.append(0)
        table.append(row)
        steps.append(row_steps)
        run = runs
    return table, steps


def wlcs_length(reference: Tokens, hypothesis: Tokens, weight: float) -> float:
    """Compute the weighted LCS length, the last entry of `wlcs_table`, diagonal by diagonal."""
    import numpy as np  # only here: the other functions run without it

    numbers: dict[Hashable, int] = {}
    x, y = (
        np.array([numbers.setdefault(token, len(numbers)) for token in tokens], dtype=np.int64)
        for tokens in (reference, hypothesis)
    )
    m = len(x)
    n = len(y)
    powers = np.array([float(k) ** weight for k in range(min(m, n) + 2)])
    # The last two diagonals, indexed by the row i; entry [i] of diagonal d is cell (i, d - i).
    older = old = np.zeros(m + 1)
    runs_older = runs_old = np.zeros(m + 1, int)
    for d in range(2, m + n + 1):
        first = max(1, d - n)
        last = min(m, d - 1)
        rows = slice(first, last + 1)
        above = slice(first - 1, last)
        same = x[above] == y[d - last - 1 : d - first][::-1]
        new = np.zeros(m + 1)
        runs = np.zeros(m + 1, int)
        k = runs_older[above]
        matched = older[above] + powers[k + 1] - powers[k]
        new[rows] = np.where(same, matched, np.maximum(old[above], old[rows]))
        runs[rows] = np.where(same, k + 1, 0)
        older = old
        old = new
        runs_older = runs_old
        runs_old = runs
    return float(old[m]) if m and n else 0.0
