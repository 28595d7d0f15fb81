"""Requests to the engine: what may be asked, and what has been generated so far.

Chapter: serving/continuous-batching.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

MOST_LOGPROBS = 20
MOST_BIASES = 1024
LONGEST_SALT = 256  # characters


class LogProb(NamedTuple):
    """A token's log-probability, and the most likely tokens with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def _real(value: Any, low: float, high: float = sys.float_info.max) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and low <= value <= high


def _whole(value: Any, low: float, high: float = math.inf) -> bool:
    return isinstance(value, int) and _real(value, low, high)


_SHIFT = (lambda v: _real(v, -2, 2), "a number from -2 to 2; 0 changes nothing")
_RULES = {
    "max_tokens": (lambda v: v is None or _whole(v, 1), "an integer of at least 1, or None"),
    "temperature": (lambda v: _real(v, 0), "a number of at least 0"),
    "top_k": (lambda v: _whole(v, 0), "an integer of at least 0; 0 keeps all tokens"),
    "top_p": (lambda v: _real(v, 0, 1) and v > 0, "a number above 0 and at most 1"),
    "min_p": (lambda v: _real(v, 0, 1), "a number from 0 to 1"),
    "repetition_penalty": (lambda v: _real(v, 0) and v > 0, "a number above 0; 1 changes nothing"),
    "frequency_penalty": _SHIFT,
    "presence_penalty": _SHIFT,
    "logit_bias": (
        lambda v: (
            isinstance(v, tuple)
            and len(v) <= MOST_BIASES
            and all(_whole(token, 0) and _real(bias, -100, 100) for token, bias in v)
        ),
        f"at most {MOST_BIASES} token ids, each with a number from -100 to 100",
    ),
    "seed": (lambda v: v is None or _whole(v, -math.inf), "an integer, or None"),
    "stop": (
        lambda v: isinstance(v, tuple) and all(isinstance(s, str) and s for s in v),
        "a string or a list of strings, none of them empty",
    ),
    "ignore_eos": (lambda v: isinstance(v, bool), "True or False"),
    "n": (lambda v: _whole(v, 1), "an integer of at least 1"),
    "priority": (lambda v: _whole(v, 0), "an integer of at least 0; 0 is the most urgent"),
    "cache_salt": (
        lambda v: v is None or (isinstance(v, str) and 1 <= len(v) <= LONGEST_SALT),
        f"a string of 1 to {LONGEST_SALT} characters, or None",
    ),
} | {
    name: (
        lambda v: v is None or _whole(v, 0, MOST_LOGPROBS),
        f"an integer from 0 to {MOST_LOGPROBS}, or None",
    )
    for name in ("logprobs", "prompt_logprobs")
}


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens, and when to stop.

    max_tokens: None means as many as fit. temperature: 0 takes the most likely token. top_k, top_p,
    min_p, the penalties and logit_bias (token ids with numbers): see `sampling.probabilities`.
    seed: makes a request repeatable. stop: strings that end the text, which does not include them.
    ignore_eos: the model's end tokens don't stop it. logprobs: the log-probability of each new
    token, with those of so many top ones; prompt_logprobs: the same for the prompt's tokens.
    n: samples per prompt. priority: 0 is first.
    cache_salt: requests share cached blocks only if their salts are equal; None is a salt, too.
    Raises ValueError that names what is wrong.

    >>> SamplingParams(top_p=1.5)
    Traceback (most recent call last):
    ...
    ValueError: top_p is 1.5: expected a number above 0 and at most 1
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

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", tuple(stop) if isinstance(stop, list) else stop)
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(self.logit_bias.items()))
        for name, (fits, expected) in _RULES.items():
            if not fits(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)!r:.80}: expected {expected}")

    @property
    def changes_logits(self) -> bool:
        """Whether biases or penalties change which token is the most likely."""
        penalties = self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1
        return bool(self.logit_bias or penalties)

    def check_biases(self, vocab_size: int) -> None:
        """Raise ValueError if a token with a bias is not in a vocabulary of this size."""
        for token, _ in self.logit_bias:
            if token >= vocab_size:
                raise ValueError(
                    f"logit_bias has the token {token}: expected ids from 0 to {vocab_size - 1}"
                )


@dataclass(eq=False)
class Completion:
    """One sample: its text, tokens and log-probabilities so far.

    finish_reason: None while it grows; "stop" (an end token or a stop string), "length", "abort",
    or "error". The tokens include those of the stop, the text does not.
    """

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogProb] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(eq=False)
class Request:
    """A prompt's token ids, its parameters, and its samples, which the engine fills.

    prompt_logprobs: one per prompt token if asked for; None for the first, which nothing precedes.
    hit_tokens: how many of the prompt's tokens came from the prefix cache. error: why its samples
    ended with reason "error", if the fault was its own.
    """

    id: int
    prompt: list[int]
    params: SamplingParams
    adapter: str | None = None
    completions: list[Completion] = field(init=False)
    prompt_logprobs: list[LogProb | None] = field(init=False, default_factory=list)
    hit_tokens: int = field(init=False, default=0)
    error: ValueError | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.completions = [Completion(index) for index in range(self.params.n)]

    @property
    def done(self) -> bool:
        """Whether all samples have ended."""
        return all(completion.finish_reason for completion in self.completions)


def prompt_ids(prompt: str | list[int], tokenizer: "Tokenizer", vocab_size: int) -> list[int]:
    """A prompt's token ids. A lone surrogate, which is not a character, becomes a question mark.

    prompt: a text, or a list of token ids. Raises ValueError if it is empty or has an unknown id.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> prompt_ids("ab", tiny_tokenizer(), 259)
    [97, 98]
    """
    ids = list(prompt) if isinstance(prompt, list | tuple) else []
    if isinstance(prompt, str):
        ids = tokenizer(prompt.encode("utf-8", "replace").decode()).input_ids
    if not ids or not all(type(t) is int and 0 <= t < vocab_size for t in ids):
        raise ValueError(
            f"the prompt is {prompt!r:.80}: expected a text or a list of ids from 0 to "
            f"{vocab_size - 1}, at least one token"
        )
    return ids


def one_each(given: Any, prompts: Sequence) -> list:
    """A list with one for each prompt, from such a list or from one for all.

    Raises ValueError for a list of another length.

    >>> one_each("poet", ["a", "b"])
    ['poet', 'poet']
    """
    each = list(given) if isinstance(given, list | tuple) else [given] * len(prompts)
    if len(each) != len(prompts):
        raise ValueError(
            f"{len(prompts)} prompts, and a list of {len(each)} params or adapters: give one for "
            "all prompts, or one for each"
        )
    return each
