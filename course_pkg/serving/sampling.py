"""Sampling: what may be asked, and from logits to a token, one sequence at a time.

The order is that of vLLM: biases, repetition penalty, frequency and presence penalty, the
constraint's mask, temperature, top-k, top-p, min-p.
Sources: Keskar et al. (2019), CTRL, for the repetition penalty; OpenAI's API for the biases and the
other two penalties; Holtzman et al. (2020) for top-p; Nguyen et al. (2024) for min-p.
"""

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_pkg.serving.constrained.decoding import constrain
from course_pkg.serving.constrained.guide import Guide
from course_pkg.serving.constrained.vocabulary import Vocabulary

MOST_LOGPROBS = 20
MOST_BIASES = 1024
LONGEST_SALT = 256  # characters
FIRST_SORTED = 1024  # the most likely tokens; they almost always have enough mass for top-p


class LogProb(NamedTuple):
    """A token's log-probability, and the most likely tokens with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def _number(low: float, high: float = sys.float_info.max) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and low <= value <= high

    return fits


def _integer(low: float, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and _number(low, high)(value)


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _are_biases(value: Any) -> bool:
    token = _integer(0)
    bias = _number(-100, 100)
    fits = isinstance(value, tuple) and len(value) <= MOST_BIASES
    return fits and all(token(id) and bias(number) for id, number in value)


def _are_stops(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(stop, str) and stop for stop in value)


def _is_salt(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= LONGEST_SALT


_ABOVE_0 = math.ulp(0.0)  # the smallest positive number
_PENALTY = _number(-2, 2), "a number from -2 to 2; 0 changes nothing"
_LOGPROBS = (_or_none(_integer(0, MOST_LOGPROBS)), f"an integer from 0 to {MOST_LOGPROBS}, or None")
_RULES = {
    "max_tokens": (_or_none(_integer(1)), "an integer of at least 1, or None"),
    "temperature": (_number(0), "a number of at least 0"),
    "top_k": (_integer(0), "an integer of at least 0; 0 keeps all tokens"),
    "top_p": (_number(_ABOVE_0, 1), "a number above 0 and at most 1"),
    "min_p": (_number(0, 1), "a number from 0 to 1"),
    "repetition_penalty": (_number(_ABOVE_0), "a number above 0; 1 changes nothing"),
    "frequency_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "logit_bias": (
        _are_biases,
        f"at most {MOST_BIASES} token ids, each with a number from -100 to 100",
    ),
    "seed": (_or_none(_integer(-math.inf)), "an integer, or None"),
    "stop": (_are_stops, "a string or a list of strings, none of them empty"),
    "ignore_eos": (lambda value: isinstance(value, bool), "True or False"),
    "logprobs": _LOGPROBS,
    "prompt_logprobs": _LOGPROBS,
    "n": (_integer(1), "an integer of at least 1"),
    "priority": (_integer(0), "an integer of at least 0; 0 is the most urgent"),
    "cache_salt": (_or_none(_is_salt), f"a string of 1 to {LONGEST_SALT} characters, or None"),
    "guide": (
        lambda value: isinstance(value, Guide | None),
        "a Guide, such as `regex_guide` gives, or None",
    ),
}


class SamplingError(ValueError):
    """A parameter has a value that it can't have. name: the parameter."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens, and when to stop. Raises SamplingError for a value out of range.

    Attributes:
        max_tokens: None means as many as fit.
        temperature: 0 takes the most likely token. top_k, top_p, min_p, the penalties and
            logit_bias (token ids with numbers): see `probabilities`.
        stop: strings that end the text, which does not include them.
        ignore_eos: the model's end tokens don't stop it.
        logprobs: the log-probability of each new token, and this many of the most likely tokens.
        prompt_logprobs: the same for the prompt's tokens.
        n: samples per prompt.
        priority: 0 is first.
        cache_salt: see `Sequence`.
        guide: a compiled constraint with the engine's vocabulary. If max_tokens or a stop string
            ends the text, it is the beginning of an allowed one.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    priority: int = 0
    cache_salt: str | None = None
    guide: Guide | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", tuple(stop) if isinstance(stop, list) else stop)
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(self.logit_bias.items()))
        for name, (fits, expected) in _RULES.items():
            if not fits(getattr(self, name)):
                value = f"{getattr(self, name)!r:.80}"
                raise SamplingError(name, f"{name} is {value}: expected {expected}")

    @property
    def changes_logits(self) -> bool:
        """Whether biases, penalties or a guide change which token is the most likely."""
        penalties = self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1
        return bool(self.logit_bias or penalties or self.guide)

    def check_biases(self, vocab_size: int) -> None:
        """Raise ValueError if a token with a bias is not in a vocabulary of this size."""
        for token, _ in self.logit_bias:
            if token >= vocab_size:
                raise ValueError(
                    f"logit_bias has the token {token}: expected ids from 0 to {vocab_size - 1}"
                )

    def check_guide(self, vocabulary: Vocabulary) -> None:
        """Raise ValueError if the guide is another vocabulary's, or the text could not end."""
        own = self.guide.vocabulary
        is_same = own is vocabulary or (
            own.eos == vocabulary.eos and list(own.tokens) == list(vocabulary.tokens)
        )
        if not is_same:
            raise ValueError(
                "the guide is of another vocabulary, or of other end tokens, than the engine's: "
                "compile it with `engine.vocabulary`"
            )
        if self.ignore_eos:
            raise ValueError(
                "ignore_eos is True beside a guide, whose text an end token must end: give one of "
                "the two"
            )


def choose(
    logits: Tensor,
    params: SamplingParams,
    tokens: Sequence[int],
    generator: random.Random,
    *,
    prompt_tokens: int = 0,
    mask: Tensor | None = None,
) -> int:
    """The next token: the most likely one at temperature 0, otherwise a random one.

    Args:
        logits: (vocab,).
        tokens: the prompt, of prompt_tokens tokens, and what was generated, for the penalties.
        mask: (vocab,) bool, the tokens that may be chosen now, or None for all.

    Raises:
        ValueError: the logits that the mask leaves have NaN or infinity, or -infinity alone.
    """
    if params.temperature == 0:
        scores = _adjusted(logits.float(), params, tokens, prompt_tokens, mask)
        best = int(scores.argmax())
        check_finite(scores[best].item())
        return best
    # (vocab,)
    chances = probabilities(logits, params, tokens, prompt_tokens=prompt_tokens, mask=mask)
    cumulative = chances.cumsum(0)
    total = cumulative[-1].item()
    check_finite(total)
    # The first token whose cumulative probability exceeds the number, which is below the total.
    return int(torch.searchsorted(cumulative, generator.random() * total, right=True))


def check_finite(number: float) -> None:
    """Raise ValueError unless the number, such as a row's largest logit, is finite."""
    if not math.isfinite(number):
        raise ValueError(
            "the logits have NaN or infinity: the model or its adapter is damaged or overflows"
        )


def probabilities(
    logits: Tensor,
    params: SamplingParams,
    tokens: Sequence[int] = (),
    *,
    prompt_tokens: int = 0,
    mask: Tensor | None = None,
) -> Tensor:
    """The distribution that a token is drawn from, (vocab,), in fp64. temperature is above 0.

    logit_bias is added to the logits of its tokens. repetition_penalty divides positive logits of
    earlier tokens and multiplies negative ones. A token that was generated c times loses c *
    frequency_penalty, and presence_penalty if c > 0; the first prompt_tokens of the tokens don't
    count for these two. Then tokens that the mask, (vocab,) bool, excludes get probability 0, so
    that what follows keeps some of the others. The temperature divides all. top_k keeps the k most
    likely tokens, with ties; top_p the fewest whose probability is at least p together; min_p those
    with at least min_p times the largest one.

    Example:

        >>> logits = torch.tensor([0.5, 0.3, 0.2]).log()
        >>> probabilities(logits, SamplingParams(top_p=0.7))
        tensor([0.6250, 0.3750, 0.0000], dtype=torch.float64)
    """
    scores = _adjusted(logits.float(), params, tokens, prompt_tokens, mask)
    scores = (scores - scores.max()).double() / params.temperature
    if 0 < params.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(params.top_k).values[-1], -torch.inf)
    kept = scores.softmax(0)
    if params.top_p < 1:
        kept = _nucleus(kept, params.top_p)
    if params.min_p > 0:
        kept = kept.where(kept >= params.min_p * kept.max(), 0)
    return kept / kept.sum()


def log_probability(logits: Tensor, token: int, top: int) -> LogProb:
    """The model's own log-probability of a token, before penalty, mask, temperature and filters.

    Args:
        top: how many of the most likely tokens to give beside it.
    """
    logprobs = logits.float().log_softmax(0)
    best = logprobs.topk(max(1, top))
    values = best.values.tolist()
    check_finite(values[0])
    pairs = list(zip(best.indices.tolist(), values, strict=True))
    return LogProb(token, logprobs[token].item(), tuple(pairs[:top]))


def _adjusted(
    logits: Tensor,
    params: SamplingParams,
    tokens: Sequence[int],
    prompt_tokens: int,
    mask: Tensor | None,
) -> Tensor:
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        places = torch.tensor(ids, device=logits.device)
        logits = logits.index_add(
            0, places, torch.tensor(biases, dtype=logits.dtype, device=logits.device)
        )
    if params.repetition_penalty != 1 and tokens:
        logits = _repetition(logits, params.repetition_penalty, tokens)
    generated = tokens[prompt_tokens:]
    if generated and (params.frequency_penalty or params.presence_penalty):
        ids = torch.tensor(generated, device=logits.device)
        counts = torch.bincount(ids, minlength=len(logits))  # (vocab,)
        logits = logits - params.frequency_penalty * counts
        logits = logits - params.presence_penalty * (counts > 0).float()
    return logits if mask is None else constrain(logits, mask)


def _repetition(logits: Tensor, penalty: float, tokens: Sequence[int]) -> Tensor:
    seen = torch.tensor(sorted(set(tokens)), device=logits.device)
    old = logits[seen]
    return logits.index_copy(0, seen, torch.where(old > 0, old / penalty, old * penalty))


def _nucleus(kept: Tensor, top_p: float) -> Tensor:
    """The probabilities with all but the fewest that together have at least top_p set to 0."""
    values, ids = kept.topk(min(FIRST_SORTED, len(kept)))
    if values.sum() < top_p:
        values, ids = kept.sort(descending=True, stable=True)
    before = values.cumsum(0) - values  # the mass of those that are more likely
    ids = ids[: max(1, int((before < top_p).sum()))]
    return torch.zeros_like(kept).index_copy(0, ids, kept[ids])
