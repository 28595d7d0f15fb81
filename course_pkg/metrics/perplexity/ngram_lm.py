"""n-gram language models: predict a token from the last n - 1 tokens, with smoothed counts::

    p(w | h) = count(h w) / count(h)             unsmoothed: 0 for every unseen n-gram
    p(w | h) = (count(h w) + k) / (count(h) + k V)                                       add-k
    p(w | h) = (c(h w) - D)+ / c(h) + D * types(h) / c(h) * p(w | h')                Kneser-Ney

h is the history, h' the history without its first token, V the number of possible next tokens.
In Kneser-Ney, c counts occurrences at the highest order, and at lower orders how many different
tokens precede the n-gram (occurrences, where it begins with <s>).

Sources: Chen and Goodman 1998, section 2; Kneser and Ney 1995.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from course_pkg.common.arguments import (
    require_between,
    require_choice,
    require_integer,
    require_list,
)
from course_pkg.metrics.ngrams import count
from course_pkg.metrics.perplexity.likelihood import Likelihood

START = "<s>"
END = "</s>"
UNKNOWN = "<unk>"
Smoothing = Literal["none", "add-k", "kneser-ney"]


class NGramModel:
    """An n-gram model of sentences, which gives every token a probability.

    Each sentence is preceded by order - 1 tokens <s>, which are never predicted, and followed by
    </s>, which is predicted.

    Args:
        sentences: lists of tokens to learn from.
        k: what add-k adds to every count, above 0.
        discount: what Kneser-Ney (interpolated) subtracts from every count, between 0 and 1.
        vocabulary: tokens that are possible although no sentence contains them; every other unknown
            token is treated as <unk>.
    """

    def __init__(
        self,
        sentences: Iterable[Sequence[str]],
        order: int,
        *,
        smoothing: Smoothing = "kneser-ney",
        k: float = 1.0,
        discount: float = 0.75,
        vocabulary: Iterable[str] = (),
    ) -> None:
        self.order = require_integer(order, "order")
        self.smoothing = require_choice(smoothing, "smoothing", ("none", "add-k", "kneser-ney"))
        self.k = require_between(k, "k", 0, math.inf)
        self.discount = require_between(discount, "discount", 0, 1)
        texts = [_tokens(sentence) for sentence in sentences]
        if not any(texts):
            raise ValueError(
                "sentences contain no token to learn from: give lists of tokens that are not empty"
            )
        seen = {token for text in texts for token in text}
        self.vocabulary = seen.union(_tokens(list(vocabulary)), (END, UNKNOWN))
        occurrences = Counter()
        for text in texts:
            occurrences.update(count([START] * (order - 1) + text + [END], order))
        # counts[m][history of m - 1 tokens][token]; only Kneser-Ney uses lower orders
        self._counts: dict[int, dict[tuple, Counter]] = {order: _by_history(occurrences)}
        for lower in range(order - 1, 0, -1) if smoothing == "kneser-ney" else ():
            occurrences = _continuations(occurrences)
            self._counts[lower] = _by_history(occurrences)

    def probability(self, token: str, history: Sequence[str] = ()) -> float:
        """p(token | history); a short history begins a sentence, as if <s> preceded it."""
        require_list(history, "history", "split it into tokens first")
        token = token if token in self.vocabulary else UNKNOWN
        known = [t if t in self.vocabulary or t == START else UNKNOWN for t in history]
        past = [START] * (self.order - 1) + known
        context = tuple(past[len(past) - self.order + 1 :])
        seen = self._counts[self.order].get(context, Counter())
        if self.smoothing == "kneser-ney":
            return self._kneser_ney(token, context)
        if self.smoothing == "add-k":
            return (seen[token] + self.k) / (seen.total() + self.k * len(self.vocabulary))
        return seen[token] / seen.total() if seen else 0.0

    def _kneser_ney(self, token: str, context: tuple[str, ...]) -> float:
        if (order := len(context) + 1) == 1:
            lower = 1 / len(self.vocabulary)
        else:
            lower = self._kneser_ney(token, context[1:])
        seen = self._counts[order].get(context)
        if not seen:
            return lower
        kept = max(seen[token] - self.discount, 0)
        return (kept + self.discount * len(seen) * lower) / seen.total()

    def log_probs(self, sentence: Sequence[str]) -> list[float]:
        """The log-probabilities, in nats, of a sentence's tokens and of its end."""
        tokens = [*_tokens(sentence), END]
        values = [self.probability(token, tokens[:i]) for i, token in enumerate(tokens)]
        return [math.log(value) if value > 0 else -math.inf for value in values]

    def score(self, sentences: Iterable[Sequence[str]]) -> Likelihood:
        """The likelihood of independent sentences; their ends count as tokens and words too."""
        parts = []
        for sentence in sentences:
            values = self.log_probs(sentence)
            parts.append(Likelihood.of(values, words=len(values)))
        return Likelihood.total(parts)


def _continuations(grams: Counter) -> Counter:
    """Count how many tokens precede each (n - 1)-gram; at a sentence's start, its occurrences."""
    counts: Counter = Counter()
    for gram, number in grams.items():
        counts[gram[1:]] += number if gram[1] == START else 1  # only <s> can precede <s>
    return counts


def _by_history(grams: Counter) -> dict[tuple, Counter]:
    by_history: dict[tuple, Counter] = defaultdict(Counter)
    for gram, number in grams.items():
        by_history[gram[:-1]][gram[-1]] = number
    return dict(by_history)


def _tokens(sentence: Sequence[str]) -> list[str]:
    for token in require_list(sentence, "a sentence", "split it into tokens first"):
        if not isinstance(token, str) or token in (START, END):
            raise TypeError(f"a token must be a string other than {START} and {END}, got {token!r}")
    return list(sentence)
