"""A request to the engine, its samples, and their chunks."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.serving.sampling import (
    LogProb,
    SamplingParams,
    check_finite,
    choose,
    log_probability,
)
from course_pkg.serving.sequence import Sequence
from course_pkg.serving.text_stream import TextStream


class Chunk(NamedTuple):
    """What a step added to a completion: a token, and the text that became certain with it."""

    completion: "Completion"
    token: int
    text: str
    logprob: LogProb | None
    finish_reason: str | None


class Completion:
    """One sample of a request: its text, tokens and log-probabilities so far.

    Attributes:
        finish_reason: None while it grows; "stop" (an end token or a stop string), "length",
            "abort", or "error". The tokens include those of the stop, the text does not.
        sequence: its tokens for the scheduler; None until it has its first.
        state: the guide's, after these tokens.
    """

    def __init__(self, request: "Request", index: int, tokenizer: Tokenizer):
        self.request = request
        self.index = index
        self.text = ""
        self.tokens: list[int] = []
        self.logprobs: list[LogProb] = []
        self.finish_reason: str | None = None
        self.sequence: Sequence | None = None
        guide = request.params.guide
        self.state: int | None = None if guide is None else guide.start
        self._text_stream = TextStream(tokenizer, request.params.stop)
        seed = request.params.seed
        self._random = random.Random() if seed is None else random.Random(f"{seed}, {index}")

    def next_tokens(self, logits: Tensor, best: int) -> dict["Completion", int]:
        """Its next token; after the prompt alone, the first tokens of all samples of the request.

        Args:
            best: the token with the largest logit.

        Raises:
            ValueError: no token can be chosen: NaN, infinity, or -infinity for all allowed tokens.
        """
        tokens = self.sequence.tokens
        is_first = len(tokens) == len(self.request.prompt)
        samples = self.request.completions if is_first else [self]
        return {sample: sample._choose(logits, best, tokens) for sample in samples}

    def _choose(self, logits: Tensor, best: int, tokens: list[int]) -> int:
        params = self.request.params
        check_finite(logits[best].item())  # here, because a mask can hide NaN
        if params.temperature == 0 and not params.changes_logits:
            return best
        mask = None if params.guide is None else params.guide.mask(self.state)
        prompt_tokens = len(self.request.prompt)
        return choose(logits, params, tokens, self._random, prompt_tokens=prompt_tokens, mask=mask)

    def add(self, token: int, logits: Tensor) -> Chunk:
        """Add the sequence's new token, which may end it. logits: those it was chosen from."""
        self.tokens.append(token)
        if self.state is not None:
            self.state = self.request.params.guide.advance(self.state, token)
        logprob = None
        if self.request.params.logprobs is not None:
            logprob = log_probability(logits, token, self.request.params.logprobs)
            self.logprobs.append(logprob)
        reason = self.sequence.finish_reason
        text = "" if reason == "stop" else self._text_stream.add(token)  # an end token has no text
        if reason:
            text += self._text_stream.finish()
        self.text += text
        self.finish_reason = "stop" if self._text_stream.stopped else reason
        chunk = Chunk(self, token, text, logprob, self.finish_reason)
        request = self.request
        if self.index == 0:
            request.hit_tokens = self.sequence.hit_tokens
        if request.chunks is not None:
            request.chunks.append(chunk)
        return chunk


@dataclass(eq=False)
class Request:
    """A prompt's token ids, its parameters, and its samples, which the engine fills.

    Attributes:
        prompt_logprobs: one per prompt token if asked for; None for the first, which nothing
            precedes.
        hit_tokens: how many of the prompt's tokens came from the prefix cache.
        error: why its samples ended with reason "error", if the fault was its own.
        chunks: what its stream has not given out.
    """

    id: int
    prompt: list[int]
    params: SamplingParams
    adapter: str | None = None
    completions: list[Completion] = field(init=False, repr=False, default_factory=list)
    prompt_logprobs: list[LogProb | None] = field(init=False, default_factory=list)
    hit_tokens: int = field(init=False, default=0)
    error: ValueError | None = field(init=False, default=None)
    chunks: deque[Chunk] | None = field(init=False, repr=False, default=None)

    @property
    def done(self) -> bool:
        return all(completion.finish_reason for completion in self.completions)

    def first_sequence(
        self, id: int | str, max_new_tokens: int, end_tokens: frozenset[int]
    ) -> Sequence:
        """The request as the scheduler sees it; further samples are forked from it."""
        return Sequence(
            id,
            self.prompt,
            max_new_tokens,
            stop=frozenset() if self.params.ignore_eos else end_tokens,
            priority=self.params.priority,
            cache_key=self.adapter or "",
            prompt_logprobs=self.params.prompt_logprobs is not None,
            cache_salt=self.params.cache_salt,
        )

    def score_prompt(self, start: int, logits: Tensor) -> None:
        """Add the log-probabilities of the prompt's tokens after `start`, one per row of logits.

        A sequence that was preempted computes its prompt again, and adds nothing twice.
        """
        logprobs = self.prompt_logprobs
        if not logprobs:
            logprobs.append(None)  # nothing precedes the first token
        for place, row in enumerate(logits, start + 1):
            if place == len(logprobs) < len(self.prompt):
                top = self.params.prompt_logprobs
                logprobs.append(log_probability(row, self.prompt[place], top))


def prompt_ids(prompt: str | list[int], tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """A prompt's token ids. A lone surrogate, which is not a character, becomes a question mark."""
    ids = list(prompt) if isinstance(prompt, list | tuple) else []
    if isinstance(prompt, str):
        ids = tokenizer(prompt.encode("utf-8", "replace").decode()).input_ids
    if not ids or not all(type(t) is int and 0 <= t < vocab_size for t in ids):
        raise ValueError(
            f"the prompt is {prompt!r:.80}: expected a text or a list of ids from 0 to "
            f"{vocab_size - 1}, at least one token"
        )
    return ids
