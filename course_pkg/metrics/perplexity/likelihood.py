"""The units of a likelihood: perplexity, bits per token, bits per byte, perplexity per word.

Totals of negative log-likelihood (NLL) add up: a corpus is the sum of its texts. Quotients do not:
a mean of perplexities is not the perplexity of the corpus. Imports no torch.
Sources: Shannon 1948, section 7; Jelinek et al. 1977.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Likelihood:
    """A text's total negative log-likelihood in nats, and the numbers of units to divide it by.

    unscored: first tokens without a BOS. words (between blanks) and bytes are the original text's.
    """

    nll: float
    tokens: int
    unscored: int = 0
    words: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, log_probs: Iterable[float], **units: int) -> "Likelihood":
        values = [float(value) for value in log_probs]
        if wrong := [value for value in values if not value <= 0]:
            raise ValueError(
                f"a log-probability must be at most 0, got {wrong[0]}; give log p, not p or -log p"
            )
        return cls(-math.fsum(values), len(values), **units)

    @classmethod
    def total(cls, parts: "Iterable[Likelihood]") -> "Likelihood":
        parts = list(parts)
        names = ("tokens", "unscored", "words", "bytes")
        sums = {name: sum(getattr(part, name) for part in parts) for name in names}
        return Likelihood(math.fsum(part.nll for part in parts), **sums)

    @property
    def nll_per_token(self) -> float:
        """Cross-entropy in nats per token: the loss reported in training; NaN without tokens."""
        return _over(self.nll, self.tokens)

    @property
    def bits_per_token(self) -> float:
        """Cross-entropy H in bits per token; 2 ** H is the perplexity."""
        return self.nll_per_token / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the original text; comparable between tokenizers."""
        return _over(self.nll / math.log(2), self.bytes)

    @property
    def perplexity(self) -> float:
        """exp(nll / tokens): the inverse of the geometric mean of the tokens' probabilities."""
        return _exp(self.nll_per_token)

    @property
    def word_perplexity(self) -> float:
        """exp(nll / words); comparable between tokenizers if blanks separate words."""
        return _exp(_over(self.nll, self.words))


def count_units(text: str) -> dict[str, int]:
    """Count the words (separated by blanks) and the bytes (in UTF-8) of a text."""
    return {"words": len(text.split()), "bytes": len(text.encode())}


def _over(amount: float, units: int) -> float:
    return amount / units if units else math.nan


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:  # above 709 nats per unit
        return math.inf
