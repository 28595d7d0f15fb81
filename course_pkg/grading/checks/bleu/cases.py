"""Cases and expected values of `bleu`. Each draw isolates one property of an answer.

For example, no word twice hides missing clipping. Texts are lists of words: no tokenizer matters.

Chapter: exercises.
"""

from operator import attrgetter
from random import Random

from course_pkg.metrics.bleu.score import BleuScore, corpus_bleu

from .by_hand import WORDS, one_reference, two_references

__all__ = ["one_reference", "two_references"]  # and every function that questions.toml names


def _bleu(inputs: dict, **options: str | bool) -> BleuScore:
    texts, references = (inputs[key] for key in sorted(inputs))  # hypotheses, then references
    if "hypotheses" not in inputs:
        texts, references = [texts], [references if isinstance(references, list) else [references]]
    references = [list(map(_string, own)) for own in references]
    return corpus_bleu(list(map(_string, texts)), references, tokenize="whitespace", **options)


def _string(text: str | list[str] | int) -> str:
    words = ["word"] * text if isinstance(text, int) else text
    return words if isinstance(words, str) else " ".join(words)


def _score(*fields: str, **options: str | bool):
    return lambda inputs: attrgetter(*fields)(_bleu(inputs, **options))


def counts_expected(inputs: dict) -> list[tuple[int, int]]:
    return list(zip(_bleu(inputs).matches, _bleu(inputs).totals, strict=True))


by_hand_clipping_expected = counts_expected


def by_hand_brevity_penalty_expected(case: dict) -> tuple[float, float]:
    swapped = dict(zip(case, reversed(case.values()), strict=True))
    return _bleu(case).brevity_penalty, _bleu(swapped).brevity_penalty


def by_hand_scores_expected(case: dict) -> tuple[float, float]:
    return _bleu(case, smoothing="none").score, _bleu(case, smoothing="exp").score


closest_length_expected = _score("reference_length")
brevity_penalty_expected = _score("brevity_penalty")
by_hand_two_references_expected = _score(
    "reference_length", "brevity_penalty", "score", smoothing="none"
)
corpus_expected = _score("score", smoothing="none")
sentence_expected = _score("score", effective_order=True)


def text(hypothesis: list[str], *references: list[str]) -> dict:
    """The inputs for one hypothesis with its references."""
    return {"hypothesis": hypothesis, "references": list(references)}


def pair(rng: Random, length: int, *at: int) -> dict:
    """A hypothesis and its one reference, of that length; at those places the words differ."""
    drawn = rng.sample(WORDS, 2 * length)
    hypothesis = [drawn[i + length * (i in at)] for i in range(length)]
    return text(hypothesis, drawn[:length])


def corpus(rng: Random, *texts: dict) -> dict:
    """The inputs for several texts, in any order."""
    rows = [(one["hypothesis"], one["references"]) for one in rng.sample(texts, len(texts))]
    return dict(zip(("hypotheses", "references"), map(list, zip(*rows, strict=True)), strict=True))


def counts_count(rng: Random, size: int) -> dict:
    """No word twice, two neighbors swapped; glued together, the ends would be equal."""
    at, ends = rng.randrange(6 + size), rng.sample([["butter", "cup"], ["butterc", "up"]], 2)
    reference = rng.sample(WORDS, 8 + size)
    hypothesis = [*reference[:at], reference[at + 1], reference[at], *reference[at + 2 : -1]]
    return text(hypothesis + ends[0], reference + ends[1])


def counts_clip(rng: Random, size: int) -> dict:
    """One reference and only two words, so that n-grams are repeated."""
    two = rng.sample(WORDS, 2)
    return text(rng.choices(two, k=7 + size), rng.choices(two, k=5 + size))


def counts_any(rng: Random, size: int) -> dict:
    """No word twice; each reference has a part of the hypothesis, the first one the smallest."""
    drawn, i, j = rng.sample(WORDS, 10 + size), rng.choice([2, 3]), 5 if size == 2 else 7 + size
    parts = drawn[:i], drawn[i:j], drawn[j : 7 + size]
    references = [[*part, end] for part, end in zip(parts, drawn[-3:], strict=True)]
    return text(drawn[: 7 + size], *references[: 3 if size == 2 else 2])


def counts_maximum(rng: Random, size: int) -> dict:
    """The hypothesis says the same three times; each of two references says it once."""
    a, b, c, d, *phrase = rng.sample(WORDS, rng.randint(7, 9) + size)
    return text(phrase * 3, [a, *phrase, b], [c, *phrase, d])


def counts_short(rng: Random, size: int) -> dict:
    """A hypothesis of no, one or two words, which may be in the reference."""
    drawn = rng.sample(WORDS, 7)
    return text(rng.choice([drawn[3:5], drawn[4:6], drawn[5:]])[:size], drawn[:5])


def closest_length_closest(rng: Random, size: int) -> dict:
    """Six lengths on both sides, the closest not at an end; one; all shorter; all longer."""
    c, far, side = rng.randint(12, 29), rng.sample(range(2, 10), 4), rng.choice([1, -1])
    signs = [[1, -1, side, side]] * 3 + [[side], [-1] * 4, [1] * 4]
    lengths = [c + sign * d for sign, d in zip(signs[size], far, strict=False)]
    if size < 3:
        lengths = [*rng.sample(lengths, 4), c + 10]
        lengths.insert(rng.randint(1, 3), c + (1, -1, 0)[size])
    return {"hypothesis_length": c, "reference_lengths": lengths}


def closest_length_ties(rng: Random, size: int) -> dict:
    """Two lengths equally close; the shorter one is the shortest and comes after the longer."""
    d = rng.randint(1, 3) + size
    c = d + rng.randint(3, 19)
    return {"hypothesis_length": c, "reference_lengths": [c + i * d for i in (4, 1, -1, 1, 6)]}


def brevity_penalty_shorter(rng: Random, size: int) -> dict:
    """c < r, and in the second case c < r/2."""
    c = rng.randint(3, 11) + 5 * size
    return {"hypothesis_length": c, "reference_length": c * (1 + size % 2) + rng.randrange(1, c)}


def brevity_penalty_longer(rng: Random, size: int) -> dict:
    """c > r, and in the last case c = r."""
    r = rng.randint(3, 11) + 5 * size
    return {"hypothesis_length": r + rng.randrange(1, r) * (size < 3), "reference_length": r}


def brevity_penalty_empty(rng: Random, size: int) -> dict:
    """An empty hypothesis."""
    return {"hypothesis_length": 0, "reference_length": rng.randint(1 + size, 29)}


def corpus_geometric(rng: Random, size: int) -> dict:
    """One text, a little longer than its one reference."""
    one = pair(rng, 9 + 2 * size, rng.randrange(2), 7 + size)
    return corpus(rng, one | {"references": [one["references"][0][: 8 + size]]})


def corpus_pooled(rng: Random, size: int) -> dict:
    """Texts as long as their references; one has no match of order 4, one has two words."""
    good = [pair(rng, length, rng.randrange(2)) for length in range(9, 10 + size)]
    return corpus(rng, *good, pair(rng, rng.randint(5, 7), 2, 4), pair(rng, 2))


def corpus_lengths(rng: Random, size: int) -> dict:
    """Every precision is 1/2: one text matches and is too short, an equal one is too long."""
    n, drawn = rng.randint(6, 8) + size, rng.sample(WORDS, 36)
    short = text(drawn[:n], drawn[: n + rng.randint(3, 6)])
    return corpus(rng, short, text(drawn[-n:], drawn[18 : 16 + n]))


def corpus_references(rng: Random, size: int) -> dict:
    """A text with three references, two of which match in part; and a text that is too short."""
    drawn, tail = rng.sample(WORDS, 25), rng.randint(1, 2)
    phrase, one, other, rest = drawn[:5], drawn[5 : 5 + tail], drawn[7 : 7 + tail], drawn[9:]
    own = rng.sample([[*other, *rest[: 7 + tail], *phrase], [*phrase, *one]], 2)
    own.insert(size % 2, [*rest, *rest][: 16 + 2 * tail])
    long, more = rng.sample(WORDS, 16), [pair(rng, 6 + i, i) for i in range(size)]
    return corpus(rng, text(phrase * 2 + one + other, *own), text(long[:7], long), *more)


def corpus_zero(rng: Random, size: int) -> dict:
    """Some words and pairs match, and nothing of order 4; in the last case everything does."""
    texts = [pair(rng, 6 + i % 2, *rng.choice([(2, 5), (3,)])) for i in range(1 + size)]
    return corpus(rng, *texts) if size < 3 else corpus(rng, pair(rng, 5))


def corpus_empty(rng: Random, size: int) -> dict:
    """One text is empty; the others match well and are a little short."""
    others = [pair(rng, rng.randint(7, 9) + i, 0) for i in range(1 + size)]
    short = [one | {"hypothesis": one["hypothesis"][:-1]} for one in others]
    return corpus(rng, text([], rng.sample(WORDS, 3 + size)), *short)


def corpus_nothing(rng: Random, size: int) -> dict:
    """All texts are empty, or no word matches; in the last case every word does."""
    texts = [pair(rng, n, *range(n if size < 2 else 0)) for n in (5, 6)]
    return corpus(rng, *(one if size else one | {"hypothesis": []} for one in texts))


def sentence_matched(rng: Random, size: int) -> dict:
    """All orders match; the closest of two references is longer, and in the last case shorter."""
    one = pair(rng, 10 + size, rng.randrange(2))
    whole, (c, r) = one["references"][0], [(8, 10), (9, 11), (12, 10)][size]
    return text(one["hypothesis"][:c], *rng.sample([whole[:r], whole[1:4]], 2))


def sentence_halving(rng: Random, size: int) -> dict:
    """Two or three orders without a match; in the last case one word shorter."""
    length = 6 + size + rng.randrange(2)
    one = pair(rng, length, *(range(1, length, 2) if size == 1 else (2, 5)))
    return one | {"hypothesis": one["hypothesis"][: length - (size == 2)]}


def sentence_short(rng: Random, size: int) -> dict:
    """Two or three words without a match in the highest order; in the last case one word."""
    length = rng.randint(2 + size % 2, 3)
    return pair(rng, 1) if size == 3 else pair(rng, length, rng.choice([0, length - 1]))


def sentence_nothing(rng: Random, size: int) -> dict:
    """An empty text, or one without a match; in the last case the reference itself."""
    one = pair(rng, 10, *range(10 if size < 3 else 0))
    return one if size else one | {"hypothesis": []}
