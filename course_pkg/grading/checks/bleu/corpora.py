"""What the question `bleu/corpus` draws, and the wrong ways that need the texts one by one.

Chapter: exercises.
"""

from typing import Any

import numpy as np

from . import methods
from .texts import replaced, words

Inputs = dict[str, Any]


def corpus_of(*pairs: tuple[list[str], list[list[str]]]) -> Inputs:
    """The inputs of a case, from (hypothesis, its references)."""
    return {"hypotheses": [h for h, _ in pairs], "references": [own for _, own in pairs]}


def _pair(rng: np.random.Generator, length: int, wrong: list[int]) -> Any:
    """A reference, and a hypothesis of the same length with other words at those places."""
    text = words(rng, length)
    return replaced(rng, text, wrong), [text]


def draw_geometric(rng: np.random.Generator, size: int) -> Inputs:
    """One text, a little longer than its one reference."""
    length = 8 + size
    hypothesis, references = _pair(rng, length, [int(rng.integers(2)), length - 1])
    extra = words(rng, 1 + size, (*hypothesis, *references[0]))
    return corpus_of(([*hypothesis, *extra], references))


def draw_pooled(rng: np.random.Generator, size: int) -> Inputs:
    """Texts as long as their references; in one of them nothing of order 4 matches, and one of two
    words has nothing of order 4 at all."""
    pairs = [
        _pair(rng, 9 + int(rng.integers(4)), [int(rng.integers(3))]),
        _pair(rng, 5 + int(rng.integers(3)), [2, 4]),
    ]
    pairs += [_pair(rng, 6 + i, [int(rng.integers(2))]) for i in range(size)]
    pairs.append(_pair(rng, 2, []))
    return corpus_of(*(pairs[i] for i in rng.permutation(len(pairs))))


def draw_lengths(rng: np.random.Generator, size: int) -> Inputs:
    """A text that matches wholly and is too short, and one as long that does not match at all and
    is too long: every precision is 1/2, and only the penalty shows."""
    length = 6 + size + int(rng.integers(3))
    text = words(rng, length + 3 + int(rng.integers(4)))
    foreign = words(rng, length + length - 2, tuple(text))
    pairs = [(text[:length], [text]), (foreign[:length], [foreign[length:]])]
    return corpus_of(*(pairs[i] for i in rng.permutation(2)))


def draw_references(rng: np.random.Generator, size: int) -> Inputs:
    """A text with three references, of which the middle one in length is the closest, two have
    each a part of what matches and the longest has nothing; and a text with one, which is much
    longer."""
    phrase, tail = words(rng, 5), int(rng.integers(1, 3))
    foreign = words(rng, 20, tuple(phrase))
    one, other, rest = foreign[:tail], foreign[tail : 2 * tail], foreign[2 * tail :]
    hypothesis = [*phrase, *phrase, *one, *other]
    both = [[*other, *rest[: 7 + tail], *phrase], [*phrase, *one]]
    if rng.integers(2):
        both.reverse()
    both.insert(size % 2, (rest * 2)[: len(hypothesis) + 6])
    text = words(rng, 16)
    pairs = [(hypothesis, both), (text[:7], [text])]
    pairs += [_pair(rng, 6 + i, [i]) for i in range(size)]
    drawn = corpus_of(*(pairs[i] for i in rng.permutation(len(pairs))))
    return {**drawn, "leave_unchanged": True}


def draw_zero(rng: np.random.Generator, size: int) -> Inputs:
    """Some words and pairs match, and nothing of order 4; in the last case everything matches, so
    that not all scores are 0."""
    if size == 3:
        return corpus_of(_pair(rng, 5, []))
    return corpus_of(
        *(_pair(rng, 6 + i % 2, [[2, 5], [3]][int(rng.integers(2))]) for i in range(1 + size))
    )


def draw_empty(rng: np.random.Generator, size: int) -> Inputs:
    """One text is empty, the others match well and are a little short."""
    pairs: list[Any] = [_pair(rng, int(rng.integers(7, 10)) + i, [0]) for i in range(1 + size)]
    pairs = [(hypothesis[:-1], own) for hypothesis, own in pairs]
    pairs.insert(int(rng.integers(len(pairs) + 1)), ([], [words(rng, 3 + size)]))
    return corpus_of(*pairs)


def draw_nothing(rng: np.random.Generator, size: int) -> Inputs:
    """All texts are empty, or not one word matches; in the last case every word does."""
    pairs = []
    if size == 2:
        return corpus_of(_pair(rng, 6, []))
    for length in (5, 6):
        text = words(rng, 2 * length)
        pairs.append((text[:length] if size else [], [text[length:]]))
    return corpus_of(*pairs)


def mean_of_scores(inputs: Inputs) -> float:
    """The mean of the BLEU scores of the texts."""
    pairs = zip(inputs["hypotheses"], inputs["references"], strict=True)
    return float(np.mean([methods.bleu([h], [own]) for h, own in pairs]))


def mean_of_precisions(inputs: Inputs) -> float:
    """The mean of the texts' precisions for each order, then as usual."""
    pairs = list(zip(inputs["hypotheses"], inputs["references"], strict=True))
    orders = []
    for n in methods.ORDERS:
        own = [(methods.matches(h, r, n), methods.total(h, n)) for h, r in pairs]
        orders.append(float(np.mean([m / t if t else 0.0 for m, t in own])))
    c = sum(len(h) for h, _ in pairs)
    r = sum(methods.reference_length(len(h), [len(x) for x in own]) for h, own in pairs)
    return methods.penalty(c, r) * methods.mean(orders)


def mean_of_penalties(inputs: Inputs) -> float:
    """Pooled precisions, and the mean of a penalty for each text."""
    pairs = zip(inputs["hypotheses"], inputs["references"], strict=True)
    each = [
        methods.penalty(len(h), methods.reference_length(len(h), [len(x) for x in own]))
        for h, own in pairs
    ]
    return float(np.mean(each)) * methods.value(methods.bleu, brevity="none")(inputs)


def without_empty(inputs: Inputs) -> float:
    """The score of what is left without the empty texts."""
    pairs = zip(inputs["hypotheses"], inputs["references"], strict=True)
    return methods.bleu(**corpus_of(*((h, own) for h, own in pairs if h)))
