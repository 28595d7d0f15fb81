"""Longest common subsequences: tables, lengths and positions, with bit-parallel algorithms.

A subsequence keeps the order and may leave tokens out. `lcs_table` and `wlcs_table` are the
textbook algorithms, one cell at a time. `lcs_length` and `lcs_positions` store a row of that
table, transposed, in one Python integer: bit i - 1, for reference token i, is 0 where the row
rises by one. Each token of the hypothesis then costs three operations on integers. Precision and
recall are in rouge.counts.

Sources: Hyyrö 2004, "Bit-parallel LCS-length computation revisited"; Lin 2004, "ROUGE: A Package
for Automatic Evaluation of Summaries", section 4 (weighted). Chapter: metrics/rouge.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from math import isqrt

Tokens = Sequence[Hashable]
FREE, CLIPPED, COUNTED = range(3)  # the states of a token in `clipped_union`
_CACHED_BITS = 2**28  # masks are cached up to 32 MiB in total; others are computed again
_KEPT_BITS = 2**26  # all rows are kept up to 8 MiB; for longer texts only some


def lcs_table(reference: Tokens, hypothesis: Tokens) -> list[list[int]]:
    """Compute the table of LCS lengths: entry [i][j] is for the first i and the first j tokens.

    Time and memory grow with the product of the lengths.
    Source: Lin 2004, section 3.1, after Cormen et al. 1989.

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
    """Compute the length of the longest common subsequence; symmetric.

    Takes time len(hypothesis) * len(reference) / 64 at most, and memory proportional to
    the sum of the lengths. Source: Hyyrö 2004; the definition is Lin 2004, section 3.1.

    >>> lcs_length("the cat is on the mat".split(), "the cat sat on the mat".split())
    5
    """
    mask = _masks(reference)
    full = (1 << len(reference)) - 1
    row = full
    for token in hypothesis:
        row = _next_row(row, mask(token), full)
    return len(reference) - row.bit_count()


def lcs_positions(reference: Tokens, hypothesis: Tokens) -> list[tuple[int, int]]:
    """Find one longest common subsequence, as pairs of positions (in reference, in hypothesis).

    If there are several, it is the one that the Perl tool and rouge-score read from the table:
    from the end back, match equal tokens; otherwise skip the reference's token, unless only
    skipping the hypothesis's token keeps the length. For long texts only every sqrt(n)-th row is
    kept, so memory is len(reference) * sqrt(len(hypothesis)) / 4 bytes.
    Source: Lin 2004, section 3.1.

    >>> lcs_positions("the cat is on the mat".split(), "cat mat".split())
    [(1, 0), (5, 1)]
    """
    return _read_back(reference, hypothesis, _masks(reference))


def lcs_union(reference: Tokens, hypotheses: Iterable[Tokens]) -> set[int]:
    """Collect the reference positions that are in the LCS with at least one hypothesis.

    Source: Lin 2004, section 3.2 (union LCS).
    """
    mask = _masks(reference)
    return {i for hypothesis in hypotheses for i, _ in _read_back(reference, hypothesis, mask)}


def clipped_union(
    references: Sequence[Sequence[str]],
    hypothesis: Sequence[Sequence[str]],
    union: Callable[[Sequence[str], Sequence[Sequence[str]]], set[int]],
) -> list[list[int]]:
    """Return a state for each token of each reference line: FREE, or matched: COUNTED or CLIPPED.

    union: finds the matched positions of a reference line, such as `lcs_union`. A matched word is
    CLIPPED if it was already COUNTED as often as it occurs in the text that has it less often.

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
    reference: Tokens, hypothesis: Tokens, mask: Callable[[Hashable], int]
) -> list[tuple[int, int]]:
    full = (1 << len(reference)) - 1
    i = len(reference)
    j = len(hypothesis)
    stride = j + 1 if i * j <= _KEPT_BITS else isqrt(j) + 1
    kept = [full]  # rows 0, stride, 2 * stride, ...
    if stride <= j:
        row = full
        for number, token in enumerate(hypothesis, start=1):
            row = _next_row(row, mask(token), full)
            if number % stride == 0:
                kept.append(row)
    pairs = []
    first = j + 1  # the number of the first row in `rows`
    while i and j:
        if reference[i - 1] == hypothesis[j - 1]:
            i -= 1
            j -= 1
            pairs.append((i, j))
            continue
        if j < first:
            first = j - j % stride
            row = kept[first // stride]
            rows = [row]
            for token in hypothesis[first : first + stride]:
                row = _next_row(row, mask(token), full)
                rows.append(row)
        if rows[j - first] >> (i - 1) & 1:  # no rise: without this reference token it is as long
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def _next_row(row: int, matches: int, full: int) -> int:
    hit = row & matches
    return ((row + hit) | (row - hit)) & full


def _masks(reference: Tokens) -> Callable[[Hashable], int]:
    """Return a function from a token to an integer whose bits are its reference positions."""
    if len(reference) <= 1024:  # so short an integer is shifted faster than its bytes are filled
        masks: dict[Hashable, int] = {}
        for position, token in enumerate(reference):
            masks[token] = masks.get(token, 0) | 1 << position
        return lambda token: masks.get(token, 0)
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

    return lambda token: mask(token) if token in positions else 0


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
    """Compute the weighted LCS length, the last entry of `wlcs_table`, diagonal by diagonal.

    Memory grows with the sum of the lengths, time with their product (a hundred million cells take
    a second or two). Source: Lin 2004, section 4.

    >>> wlcs_length("abcd", "abxd", weight=2)
    5.0
    """
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
