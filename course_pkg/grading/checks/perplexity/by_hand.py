"""The numbers of `perplexity` that are worked by hand, on each student's own small case.

Chapter: exercises.
"""

import math
from collections.abc import Callable
from typing import Any

from course_pkg.metrics.perplexity.likelihood import Likelihood

from ...contract.compare import number
from ...contract.questions import Misconception, Property, Question


def _question(
    name: str,
    expected: Callable[[Any], float],
    says: str,
    hint: str,
    wrong: dict[str, tuple[str, Callable[[Any], float]]],
) -> Question:
    return Question(
        name=f"by-hand/{name}",
        expected=expected,
        compare=number(rtol=5e-3),
        variant="by-hand",
        properties=(Property("value", 1, says, hint, cases=1),),
        misconceptions=tuple(
            Misconception(key, text, value, ("value",)) for key, (text, value) in wrong.items()
        ),
    )


def text(case: dict[str, Any]) -> Likelihood:
    """The text of 1a: `length` tokens of the given mean log-probability."""
    return Likelihood(-case["length"] * case["mean_log_probability"], case["length"])


def other_text(case: dict[str, Any]) -> Likelihood:
    """The second text of 1e."""
    return Likelihood(
        -case["other_length"] * case["other_mean_log_probability"], case["other_length"]
    )


def sentence(case: dict[str, Any]) -> Likelihood:
    """The sentence, whose first word has nothing before it."""
    return Likelihood.of(map(math.log, case["probabilities"]), unscored=1)


def both(case: dict[str, Any]) -> Likelihood:
    """The two texts together."""
    return Likelihood.total([text(case), other_text(case)])


def _weighted(case: dict[str, Any]) -> float:
    parts = (text(case), other_text(case))
    return sum(part.tokens * part.perplexity for part in parts) / sum(p.tokens for p in parts)


def _mean_probability(case: dict[str, Any]) -> float:
    return sum(case["probabilities"]) / len(case["probabilities"])


BY_HAND = (
    _question(
        "perplexity",
        lambda c: text(c).perplexity,
        "1a: the perplexity of the text",
        "The mean of the log-probabilities is given: what turns its negative into a perplexity?",
        {
            "no-minus": (
                "you left out the minus sign: this is 1 over the perplexity",
                lambda c: math.exp(c["mean_log_probability"]),
            ),
            "base-two": (
                "you raised 2 to the power of nats; with natural logarithms the base is e",
                lambda c: 2 ** -c["mean_log_probability"],
            ),
            "base-ten": (
                "you raised 10 to the power of nats; with natural logarithms the base is e",
                lambda c: 10 ** -c["mean_log_probability"],
            ),
            "sum": (
                "you multiplied by the length: exp of the sum; perplexity is exp of the mean",
                lambda c: math.exp(text(c).nll),
            ),
            "divided-again": (
                "you divided by the length, but what is given is a mean already",
                lambda c: math.exp(text(c).nll_per_token / c["length"]),
            ),
            "not-exponentiated": (
                "this is the mean NLL; perplexity is its exponential",
                lambda c: text(c).nll_per_token,
            ),
        },
    ),
    _question(
        "nll",
        lambda c: sentence(c).nll,
        "1b: the sentence's NLL in nats",
        "Minus the natural logarithm of each probability, added up.",
        {
            "no-minus": (
                "this is the log-probability; the NLL is its negative",
                lambda c: -sentence(c).nll,
            ),
            "base-ten": (
                "you took logarithms to base 10; nats are natural logarithms (math.log)",
                lambda c: sentence(c).nll / math.log(10),
            ),
            "base-two": (
                "this is the NLL in bits; nats are natural logarithms (math.log)",
                lambda c: sentence(c).nll / math.log(2),
            ),
            "mean": (
                "this is the mean of the words that were scored; the NLL is their sum",
                lambda c: sentence(c).nll_per_token,
            ),
            "probabilities-added": (
                "you added the probabilities; they are multiplied, so their logarithms are added",
                lambda c: -math.log(sum(c["probabilities"])),
            ),
        },
    ),
    _question(
        "sentence",
        lambda c: sentence(c).perplexity,
        "1c: the sentence's perplexity",
        "exp of the NLL over the number of words that have a probability.",
        {
            "all-words": (
                "you divided by all the words; the first one has no probability, so it isn't "
                "counted",
                lambda c: math.exp(sentence(c).nll / len(c["words"])),
            ),
            "sum": (
                "you left out the division: exp of the sum; perplexity is exp of the mean",
                lambda c: math.exp(sentence(c).nll),
            ),
            "no-minus": (
                "you left out the minus sign: this is 1 over the perplexity",
                lambda c: 1 / sentence(c).perplexity,
            ),
            "base-ten": (
                "you took logarithms to base 10, but powers of e",
                lambda c: math.exp(sentence(c).nll_per_token / math.log(10)),
            ),
            "base-two": (
                "you took logarithms to base 2, but powers of e",
                lambda c: math.exp(sentence(c).nll_per_token / math.log(2)),
            ),
            "mean-of-inverses": (
                "this is the mean of 1/p; perplexity is the geometric mean",
                lambda c: sum(1 / p for p in c["probabilities"]) / len(c["probabilities"]),
            ),
            "inverse-of-mean": (
                "you took 1 over the mean probability; perplexity is 1 over the geometric mean",
                lambda c: 1 / _mean_probability(c),
            ),
        },
    ),
    _question(
        "bits",
        lambda c: sentence(c).bits_per_token,
        "1d: the sentence's cross-entropy in bits a word",
        "2 to the power of it must be the perplexity of 1c.",
        {
            "nats": ("this is in nats; a bit is ln 2 nats", lambda c: sentence(c).nll_per_token),
            "multiplied": (
                "you multiplied by ln 2; nats are divided by it",
                lambda c: sentence(c).nll_per_token * math.log(2),
            ),
            "total": (
                "these are the bits of the whole sentence; per word, divide by the words that "
                "were scored",
                lambda c: sentence(c).nll / math.log(2),
            ),
            "all-words": (
                "you divided by all the words; the first one has no probability, so it isn't "
                "counted",
                lambda c: sentence(c).nll / math.log(2) / len(c["words"]),
            ),
            "base-ten": (
                "you took logarithms to base 10; for bits the base is 2",
                lambda c: sentence(c).nll_per_token / math.log(10),
            ),
            "no-minus": (
                "you left out the minus sign: logarithms of probabilities are negative",
                lambda c: -sentence(c).bits_per_token,
            ),
        },
    ),
    _question(
        "together",
        lambda c: both(c).perplexity,
        "1e: the perplexity of both texts together",
        "Totals can be added, means can't: first the NLL and the tokens of both.",
        {
            "mean-of-perplexities": (
                "this is the mean of the two perplexities; add up NLL and tokens first",
                lambda c: (text(c).perplexity + other_text(c).perplexity) / 2,
            ),
            "weighted-perplexities": (
                "you averaged the perplexities, weighted by tokens; it is their logarithms, the "
                "NLLs, that are averaged so",
                _weighted,
            ),
            "mean-of-means": (
                "you averaged the two means as if the texts were of one length",
                lambda c: math.exp((text(c).nll_per_token + other_text(c).nll_per_token) / 2),
            ),
            "no-minus": (
                "you left out the minus sign: this is 1 over the perplexity",
                lambda c: 1 / both(c).perplexity,
            ),
            "first-only": (
                "this is the perplexity of the first text alone",
                lambda c: text(c).perplexity,
            ),
        },
    ),
)
