"""How different are the test cases? Self-BLEU, distinct n-grams, and the share of distinct texts.

Self-BLEU is the mean BLEU of each text with all other texts as references: 1 if every text has a
copy, near 0 if they share nothing. It grows with the number of texts, because more references match
more; compare sets of the same size.
Sources: Zhu et al. 2018, "Texygen: A Benchmarking Platform for Text Generation Models" (self-BLEU);
Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models"
(distinct-n). Chapter: evaluation/red-teaming.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from course_pkg.common.arguments import require_integer, text_list
from course_pkg.metrics.bleu import bleu_from_counts
from course_pkg.metrics.ngrams import Ngram, clipped_matches, count, ngrams
from course_pkg.metrics.tokenizers import tokenize

ORDERS = (1, 2, 3, 4)


@dataclass(frozen=True)
class SelfBleu:
    """The mean self-BLEU of a set of texts, and that of each text, (n,); in [0, 1]."""

    mean: float
    of_texts: tuple[float, ...]


def self_bleu(texts: Sequence[str], *, smoothing: str = "exp") -> SelfBleu:
    """BLEU of each text with all other texts as references, and the mean over the texts.

    texts: at least two. Tokens as `metrics.tokenizers`' "13a", in lower case. Each text's score is
    `sentence_bleu(text, others)`, computed without building the references again for each text.
    Raises ValueError for fewer than two texts.
    Source: Zhu et al. 2018, with the smoothing of `metrics.bleu`.

    >>> self_bleu(["What is your name?", "What is your name?", "Who are you?"]).of_texts[:2]
    (1.0, 1.0)
    """
    tokens = [tokenize(text.lower()) for text in text_list(texts)]
    if len(tokens) < 2:
        raise ValueError(f"self-BLEU compares texts with each other: give two or more, got {texts}")
    limits = {n: _LargestCounts([count(each, n) for each in tokens]) for n in ORDERS}
    lengths = [len(each) for each in tokens]
    scores = []
    for index, each in enumerate(tokens):
        others = lengths[:index] + lengths[index + 1 :]
        closest = min(others, key=lambda length: (abs(length - len(each)), length))
        scores.append(
            bleu_from_counts(
                [limits[n].matches(index) for n in ORDERS],
                [max(len(each) - n + 1, 0) for n in ORDERS],
                len(each),
                closest,
                smoothing=smoothing,
                effective_order=True,
            ).score
        )
    return SelfBleu(sum(scores) / len(scores), tuple(scores))


class _LargestCounts:
    """For each n-gram, its two largest counts and whose the largest is: maxima without one text."""

    def __init__(self, counters: Sequence[Counter[Ngram]]):
        self.counters = counters
        self.first: dict[Ngram, tuple[int, int]] = {}  # largest count, its text
        self.second: Counter[Ngram] = Counter()  # the largest count in another text
        for index, counter in enumerate(counters):
            for ngram, number in counter.items():
                best = self.first[ngram][0] if ngram in self.first else 0
                if number > best:
                    self.first[ngram] = (number, index)
                    self.second[ngram] = best
                else:
                    self.second[ngram] = max(self.second[ngram], number)

    def matches(self, index: int) -> int:
        """Clipped matches of a text's n-grams with the maxima over all other texts."""
        others = Counter()
        for ngram in self.counters[index]:
            best, owner = self.first[ngram]
            others[ngram] = self.second[ngram] if owner == index else best
        return clipped_matches(self.counters[index], others)


def distinct_ngrams(texts: Sequence[str], n: int) -> float:
    """distinct-n: different n-grams, divided by all n-grams of all texts; 0 if there are none.

    Raises ValueError for no texts or n < 1.
    Source: Li et al. 2016, section 5.

    >>> distinct_ngrams(["a b", "a c"], 1)
    0.75
    """
    require_integer(n, "n")
    found = [run for text in text_list(texts) for run in ngrams(tokenize(text.lower()), n)]
    return len(set(found)) / len(found) if found else 0.0


def distinct_share(texts: Sequence[str]) -> float:
    """Different texts, divided by all texts; upper and lower case and spaces don't count.

    Raises ValueError for no texts.

    >>> distinct_share(["Why?", "why? ", "Who?", "How?"])
    0.75
    """
    listed = text_list(texts)
    return len({" ".join(text.lower().split()) for text in listed}) / len(listed)
