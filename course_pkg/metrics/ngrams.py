"""n-grams: runs of n tokens, how often each occurs, and how many two texts share.

It computes no score and does not split texts: `tokenizers` does.

Source: Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation",
section 2.1. Chapter: metrics/bleu.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

from course_pkg.arguments import require_integer, require_list

Ngram = tuple[Hashable, ...]


def ngrams(tokens: Sequence[Hashable], n: int) -> list[Ngram]:
    """List all runs of n neighboring tokens from left to right; empty for fewer than n tokens.

    Raises TypeError for a string (split it into tokens first), ValueError unless n >= 1.

    >>> ngrams(["the", "cat", "sat"], 2)
    [('the', 'cat'), ('cat', 'sat')]
    """
    return list(_runs(tokens, n))


def count(tokens: Sequence[Hashable], n: int) -> Counter[Ngram]:
    """Count how often each n-gram occurs. Errors as for `ngrams`.

    >>> count(["the", "cat", "the", "cat"], 2)
    Counter({('the', 'cat'): 2, ('cat', 'the'): 1})
    """
    return Counter(_runs(tokens, n))


def clipped_matches(hypothesis: Counter, reference: Counter) -> int:
    """Count the n-grams that two texts share, each as often as in the text with fewer.

    For several references, pass their `maximum_counts`.
    Source: Papineni et al. 2002, section 2.1 (Count_clip).

    >>> clipped_matches(count(["the", "the", "the"], 1), count(["the", "cat", "the"], 1))
    2
    """
    shared = hypothesis.keys() & reference.keys()
    return sum([min(hypothesis[ngram], reference[ngram]) for ngram in shared])


def count_matches(tokens: Sequence[Hashable], n: int, reference: Counter) -> int:
    """`clipped_matches(count(tokens, n), reference)` in half the time."""
    shared = list(filter(reference.__contains__, _runs(tokens, n)))
    if len(set(shared)) == len(shared):  # no repetition, so nothing to clip
        return len(shared)
    return clipped_matches(Counter(shared), reference)


def maximum_counts(counters: Sequence[Counter]) -> Counter:
    """Take each n-gram's largest count: the limit for clipping with several references.

    Raises ValueError for an empty list.
    Source: Papineni et al. 2002, section 2.1 (Max_Ref_Count).

    >>> maximum_counts([count(["the", "the"], 1), count(["the"], 1)])
    Counter({('the',): 2})
    """
    if not counters:
        raise ValueError("maximum_counts needs the counts of at least one reference, got none")
    if len(counters) == 1:
        return counters[0]
    largest: Counter = Counter()
    for counter in counters:
        largest |= counter
    return largest


def _runs(tokens: Sequence[Hashable], n: int) -> zip:
    require_list(tokens, "tokens", "split a text with tokenize(text, name) first")
    require_integer(n, "n")
    return zip(*(tokens[start:] for start in range(n)), strict=False)  # stops at the shortest
