"""Skip-bigrams: pairs of words in their order, with other words allowed between them.

`skip_bigrams` lists them. `skip_bigram_matches` counts those that two texts share. Without a limit
on the gap, a text of n tokens has n (n - 1) / 2 pairs; the count therefore goes column by column
through the matrix (first word, second word) and does not store the pairs. The options of rouge_s
and rouge_su are explained in rouge.score, with the other kinds of ROUGE.

Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 5.
Chapter: metrics/rouge-variants.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from course_pkg.metrics.ngrams import clipped_matches, count
from course_pkg.metrics.rouge import perl
from course_pkg.metrics.rouge.counts import Overlap, RougeScore, score_texts
from course_pkg.metrics.rouge.tokens import Stem
from course_pkg.metrics.tokenizers import Tokenizer

_MOST_CELLS = 4_000_000_000  # words times length; takes about a minute


def rouge_s(
    hypothesis: str,
    references: str | Iterable[str],
    *,
    max_gap: int | None = None,
    beta: float = 1.0,
    multi: str | None = None,
    stem: Stem = False,
    tokenize: str | Tokenizer = "rouge",
    mode: str = "paper",
) -> RougeScore:
    """Compute ROUGE-S: the pairs of words in the same order in both texts, gaps allowed.

    max_gap: how many words may be between the two, None for any number; it is the Perl tool's
    option -2 (-1: any). Errors as for `rouge_n`; time as for `skip_bigram_matches`.
    Source: Lin 2004, section 5, equations 16 to 18.

    >>> rouge_s("police kill the gunman", "police killed the gunman").recall
    0.5
    """

    def overlap(hypothesis: list[str], reference: list[str]) -> Overlap:
        totals = (skip_bigram_total(len(tokens), max_gap) for tokens in (hypothesis, reference))
        return Overlap(skip_bigram_matches(hypothesis, reference, max_gap), *totals)

    return score_texts(overlap, hypothesis, references, beta, multi, stem, tokenize, mode)


def rouge_su(
    hypothesis: str,
    references: str | Iterable[str],
    *,
    max_gap: int | None = None,
    beta: float = 1.0,
    multi: str | None = None,
    stem: Stem = False,
    tokenize: str | Tokenizer = "rouge",
    mode: str = "paper",
) -> RougeScore:
    """Compute ROUGE-SU: skip-bigrams and single words, counted together.

    In mode "rouge155" the last word of a text is not counted as a single word. Arguments and
    errors as for `rouge_s`.
    Source: Lin 2004, section 5.1; ROUGE-1.5.5, option -u.

    >>> rouge_su("gunman the killed police", "police killed the gunman").recall
    0.4
    """

    def overlap(hypothesis: list[str], reference: list[str]) -> Overlap:
        singles = [hypothesis, reference]
        if mode == perl.MODE:
            singles = [perl.single_words(tokens) for tokens in singles]
        words = [count(tokens, 1) for tokens in singles]
        matches = skip_bigram_matches(hypothesis, reference, max_gap) + clipped_matches(*words)
        totals = (
            skip_bigram_total(len(tokens), max_gap) + counter.total()
            for tokens, counter in zip((hypothesis, reference), words, strict=True)
        )
        return Overlap(matches, *totals)

    return score_texts(overlap, hypothesis, references, beta, multi, stem, tokenize, mode)


def skip_bigrams(
    tokens: Sequence[Hashable], max_gap: int | None = None
) -> list[tuple[Hashable, Hashable]]:
    """List all pairs of tokens in the order of the text, from left to right.

    max_gap: how many tokens may be between the two: 0 gives the bigrams, None sets no limit.
    Raises TypeError or ValueError for another max_gap.
    Source: Lin 2004, section 5.

    >>> skip_bigrams(["the", "cat", "sat"])
    [('the', 'cat'), ('the', 'sat'), ('cat', 'sat')]
    >>> skip_bigrams(["the", "cat", "sat"], max_gap=0)
    [('the', 'cat'), ('cat', 'sat')]
    """
    return list(_pairs(tokens, max_gap))


def skip_bigram_total(length: int, max_gap: int | None = None) -> int:
    """Compute how many skip-bigrams a text of `length` tokens has, including repeated ones.

    Source: Lin 2004, section 5, C(m, 2) for no limit.

    >>> skip_bigram_total(6), skip_bigram_total(6, max_gap=4), skip_bigram_total(6, max_gap=0)
    (15, 15, 5)
    """
    reach = _reach(length, max_gap)
    return reach * length - reach * (reach + 1) // 2


def skip_bigram_matches(
    hypothesis: Sequence[Hashable], reference: Sequence[Hashable], max_gap: int | None = None
) -> int:
    """Count the skip-bigrams that two texts share, each as often as in the text with fewer.

    Symmetric. Takes time proportional to the length times the smaller of the gap and the number of
    different words that both texts contain. max_gap and errors as for `skip_bigrams`; ValueError
    also if the gap has no limit and that product exceeds 4 billion.
    Source: Lin 2004, section 5, SKIP2(X, Y).

    >>> skip_bigram_matches("police kill the gunman".split(), "police killed the gunman".split())
    3
    """
    shared = set(hypothesis) & set(reference)
    longest = max(len(hypothesis), len(reference))
    reach = _reach(longest, max_gap)
    if reach <= max(8, len(shared) // 40):  # listing a pair costs 40 times a cell of a column
        return clipped_matches(
            Counter(_pairs(hypothesis, max_gap)), Counter(_pairs(reference, max_gap))
        )
    if len(shared) * longest > _MOST_CELLS:
        raise ValueError(
            f"texts of {longest:,} tokens that share {len(shared):,} words have too many "
            "skip-bigrams to count without a limit; set max_gap (4 is usual)"
        )
    import numpy as np  # only here: short texts and small gaps are counted without it

    numbers = {token: number for number, token in enumerate(shared)}
    columns = zip(
        _columns(hypothesis, numbers, max_gap), _columns(reference, numbers, max_gap), strict=True
    )
    return int(sum(np.minimum(*pair).sum() for pair in columns))


def _columns(
    tokens: Sequence[Hashable], numbers: dict[Hashable, int], max_gap: int | None
) -> Iterator[Any]:
    """Yield for each second word an array: how often every word precedes it within reach."""
    import numpy as np

    kinds = np.array([numbers.get(token, len(numbers)) for token in tokens], dtype=np.int64)
    starts = np.arange(len(kinds))
    ends = np.minimum(starts + _reach(len(kinds), max_gap), len(kinds) - 1)
    for number in range(len(numbers)):
        seen = np.cumsum(kinds == number)  # how many of this word up to each position
        counts = np.bincount(kinds, weights=seen[ends] - seen, minlength=len(numbers) + 1)
        yield counts[:-1].astype(np.int64)


def _pairs(tokens: Sequence[Hashable], max_gap: int | None) -> Iterator[tuple[Hashable, Hashable]]:
    if isinstance(tokens, str | bytes):
        raise TypeError(
            f"tokens must be a list, got {type(tokens).__name__}; tokenize the text first"
        )
    reach = _reach(len(tokens), max_gap)
    for i, first in enumerate(tokens):
        for second in tokens[i + 1 : i + 1 + reach]:
            yield first, second


def _reach(length: int, max_gap: int | None) -> int:
    """Return the largest distance between the two positions of a pair."""
    if max_gap is None:
        return max(length - 1, 0)
    if isinstance(max_gap, bool) or not isinstance(max_gap, int):
        raise TypeError(f"max_gap must be an integer of at least 0, or None, got {max_gap!r}")
    if max_gap < 0:
        raise ValueError(f"max_gap must be at least 0, got {max_gap}; None sets no limit")
    return min(max_gap + 1, max(length - 1, 0))
