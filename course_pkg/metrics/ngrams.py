"""n-grams: runs of n tokens, how often each occurs, and how many two texts share.

Source: Papineni et al. 2002, section 2.1.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

from course_pkg.common.arguments import require_integer, require_list

Ngram = tuple[Hashable, ...]


def ngrams(tokens: Sequence[Hashable], n: int) -> list[Ngram]:
    """List all runs of n neighboring tokens from left to right; empty for fewer than n tokens.

    >>> ngrams(["the", "cat", "sat"], 2)
    [('the', 'cat'), ('cat', 'sat')]
    """
    return list(_runs(tokens, n))


def count(tokens: Sequence[Hashable], n: int) -> Counter[Ngram]:
    """Count how often each n-gram occurs.

    >>> count(["the", "cat", "the", "cat"], 2)
    Counter({('the', 'cat'): 2, ('cat', 'the'): 1})
    """
    return Counter(_runs(tokens, n))


def clipped_matches(hypothesis: Counter, reference: Counter) -> int:
    """Count the n-grams that two texts share, each as often as in the text with fewer (Count_clip).

    For several references, pass their `maximum_counts`. Source: Papineni et al. 2002, section 2.1.

    >>> clipped_matches(count(["the", "the", "the"], 1), count(["the", "cat", "the"], 1))
    2
    """
    matches = 0
    for ngram, times in hypothesis.items():
        allowed = reference.get(ngram, 0)
        matches += times if times < allowed else allowed  # `min` takes twice as long
    return matches


def count_matches(tokens: Sequence[Hashable], references: Sequence[Counter]) -> list[int]:
    """`clipped_matches(count(tokens, n), references[n - 1])` for n = 1, 2, ..., in half the time.

    Only n-grams that match are counted, and only until none occurs twice: then no longer one does.
    """
    _require_tokens(tokens)
    matches = [0] * len(references)
    starts: list[Sequence[Hashable]] = []
    distinct = False
    for index, reference in enumerate(references):
        starts.append(tokens[index:])
        shared = list(filter(reference.__contains__, zip(*starts, strict=False)))
        if not shared:
            break  # longer n-grams cannot match either
        distinct = distinct or len(set(shared)) == len(shared)
        matches[index] = len(shared) if distinct else clipped_matches(Counter(shared), reference)
    return matches


def maximum_counts(counters: Sequence[Counter]) -> Counter:
    """Take each n-gram's largest count, which clips with several references (Max_Ref_Count).

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
    _require_tokens(tokens)
    require_integer(n, "n")
    return zip(*(tokens[start:] for start in range(n)), strict=False)  # stops at the shortest


def _require_tokens(tokens: Sequence[Hashable]) -> None:
    require_list(tokens, "tokens", "split a text with tokenize(text, name) first")
