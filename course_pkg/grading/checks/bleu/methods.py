"""The wrong ways to compute BLEU that `bleu` knows, each step by the name of its fault.

With the names that stand first every step is right; the questions take what is right from
`course_pkg.metrics` all the same, and from here only what to recognize.

Chapter: exercises.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

Tokens = Sequence[str]
ORDERS = (1, 2, 3, 4)


def grams(tokens: Tokens, n: int, cut: str = "neighbors") -> Counter:
    """The n-grams of a text, counted.

    cut: "gaps" takes any n tokens in their order, "bags" forgets the order, "one-less" stops one
    too early.
    """
    if cut == "gaps":
        return Counter(combinations(tokens, n))
    runs = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    if cut == "bags":
        return Counter(tuple(sorted(run)) for run in runs)
    return Counter(runs[:-1] if cut == "one-less" else runs)


def matches(
    hypothesis: Tokens, references: Sequence[Tokens], n: int, clip: str = "maximum", cut: str = ""
) -> int:
    """The n-grams of the hypothesis that count as matched.

    clip: "unclipped" counts each one that a reference has; "sum" clips by the sum over references;
    "first" looks at the first reference alone; "best" at the one that matches most; "types" counts
    each n-gram once.
    """
    counts = grams(hypothesis, n, "neighbors" if cut == "gaps" else cut)
    own = [grams(reference, n, cut) for reference in references]
    if clip == "best":
        return max((counts & one).total() for one in own)
    limit = Counter(own[0])
    for one in own[1:] if clip != "first" else ():
        limit = limit + one if clip == "sum" else limit | one
    shared = [gram for gram in counts if gram in limit]
    if clip == "unclipped":
        return sum(counts[gram] for gram in shared)
    return len(shared) if clip == "types" else sum(min(counts[g], limit[g]) for g in shared)


def total(hypothesis: Tokens, n: int) -> int:
    """How many n-grams the hypothesis has."""
    return max(0, len(hypothesis) - n + 1)


def reference_length(c: int, lengths: Sequence[int], rule: str = "closest") -> float:
    """The reference length that is compared with the length c of a hypothesis.

    rule: "shortest", "longest", "mean" and "first" say what is taken; "first-tie" is closest, but
    of two equally close the one that stands first.
    """
    rules: dict[str, Callable[[], float]] = {
        "closest": lambda: min(lengths, key=lambda length: (abs(length - c), length)),
        "first-tie": lambda: min(lengths, key=lambda length: abs(length - c)),
        "shortest": lambda: min(lengths),
        "longest": lambda: max(lengths),
        "mean": lambda: sum(lengths) / len(lengths),
        "first": lambda: lengths[0],
    }
    return rules[rule]()


def penalty(c: float, r: float, rule: str = "standard") -> float:
    """The brevity penalty for lengths c and r.

    rule: "none" is always 1; "always" takes the formula though c > r; "inverted" has c/r in the
    place of r/c; "ratio" is c/r itself; "longer" punishes what is too long.
    """
    if rule == "none":
        return 1.0
    if rule == "always":
        return math.exp(1 - r / c)
    if rule == "longer":
        return math.exp(1 - c / r) if c > r else 1.0
    if c >= r:
        return 1.0
    if rule == "ratio":
        return c / r
    if rule == "inverted":
        return math.exp(1 - c / r)
    return math.exp(1 - r / c) if c else 0.0


def mean(precisions: Sequence[float], rule: str = "geometric") -> float:
    """What becomes of the precisions. rule: "arithmetic", or "product" without the root;
    "left-out" takes the mean of those above 0 alone, "as-one" puts 1 for 0."""
    if rule == "arithmetic":
        return sum(precisions) / len(precisions)
    if rule == "left-out":
        precisions = [p for p in precisions if p] or [0.0]
    if rule == "as-one":
        precisions = [p or 1.0 for p in precisions]
    return math.prod(precisions) ** (1.0 if rule == "product" else 1 / len(precisions))


def smooth(counts: Sequence[tuple[int, int]], rule: str = "exp") -> list[float]:
    """Precisions from (matches, total) pairs; the first order without a match gets 1/2 for 0
    matches, the next one 1/4.

    rule: "none" leaves 0; "same" always puts 1/2; "late" begins with 1; "no-total" forgets to
    divide by the total; "floor" puts 0.1; "add-one" adds 1 to both numbers of every order.
    """
    precisions, k = [], 0
    for matched, out_of in counts:
        if rule == "add-one":
            matched, out_of = matched + 1, out_of + 1
        elif not matched and rule != "none":
            k += 1
            exponent = {"same": 1, "late": k - 1}.get(rule, k)
            matched = 0.1 if rule == "floor" else 0.5**exponent
            out_of = 1 if rule == "no-total" else out_of
        precisions.append(matched / out_of if out_of else 0.0)
    return precisions


def bleu(
    hypotheses: Sequence[Tokens],
    references: Sequence[Sequence[Tokens]],
    *,
    clip: str = "maximum",
    length: str = "closest",
    brevity: str = "standard",
    average: str = "geometric",
    smoothing: str = "none",
) -> float:
    """Corpus BLEU with at most the named faults."""
    pairs = list(zip(hypotheses, references, strict=True))
    counts = [
        (sum(matches(h, own, n, clip) for h, own in pairs), sum(total(h, n) for h, _ in pairs))
        for n in ORDERS
    ]
    c = sum(len(h) for h, _ in pairs)
    r = sum(reference_length(len(h), [len(one) for one in own], length) for h, own in pairs)
    return penalty(c, r, brevity) * mean(smooth(counts, smoothing), average)


def value(method: Callable[..., Any], **fault: Any) -> Callable[[dict[str, Any]], Any]:
    """`method` with a fault, as a function of the inputs of a case."""
    return lambda inputs: method(inputs["hypotheses"], inputs["references"], **fault)
