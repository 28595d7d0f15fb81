"""A sample that the engine is generating: its random numbers, its text, and what it reports.

Chapter: serving/continuous-batching.
"""

import random
from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.serving.request import Completion, Request
from course_pkg.serving.sampling import check_finite, choose, log_probability
from course_pkg.serving.sequence import Sequence
from course_pkg.serving.text_stream import TextStream


class Chunk(NamedTuple):
    """What a step added to a sample: a token, and the text that became certain with it."""

    request: Request
    completion: Completion
    token: int
    text: str


class Sample:
    """The completion of a request with this index; its sequence is set once it has one."""

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer):
        self.request, self.completion = request, request.completions[index]
        self.id = f"{request.id}.{index}"
        self.sequence: Sequence | None = None
        self.text = TextStream(tokenizer, request.params.stop)
        seed = request.params.seed
        self.random = random.Random() if seed is None else random.Random(f"{seed}, {index}")

    def choose(self, logits: Tensor, best: int, tokens: list[int]) -> int:
        """The next token. best: the one with the largest logit, found for all rows at once.

        Raises ValueError if the logits have NaN or infinity.
        """
        params = self.request.params
        if params.temperature == 0 and not params.changes_logits:
            check_finite(logits[best].item())
            return best
        prompt_tokens = len(self.request.prompt)
        return choose(logits, params, tokens, self.random, prompt_tokens=prompt_tokens)

    def report(self, token: int, logits: Tensor) -> Chunk:
        """Add the sequence's new token to the completion, which may end with it."""
        completion, text = self.completion, ""
        completion.tokens.append(token)
        if (top := self.request.params.logprobs) is not None:
            completion.logprobs.append(log_probability(logits, token, top))
        reason = self.sequence.finish_reason
        if reason != "stop":  # the text has no end token
            text = self.text.add(token)
        if reason:
            text += self.text.finish()
        completion.text += text
        completion.finish_reason = "stop" if self.text.stopped else reason
        return Chunk(self.request, completion, token, text)


def report_prompt(request: Request, start: int, logits: Tensor) -> None:
    """Add the log-probabilities of the prompt's tokens after `start`, one for each row of logits.

    A sequence that was preempted computes its prompt again, and adds nothing twice. Raises
    ValueError if the logits have NaN or infinity.
    """
    found, prompt = request.prompt_logprobs, request.prompt
    found += [None] * (not found)  # nothing precedes the first token
    for place, row in enumerate(logits, start + 1):
        if place == len(found) < len(prompt):
            found.append(log_probability(row, prompt[place], request.params.prompt_logprobs))


def end_tokens(model: nn.Module, tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end a text: those of the model's generation config, or the tokenizer's."""
    settings = getattr(model, "generation_config", None)
    ends = tokenizer.eos_token_id if settings is None else settings.eos_token_id
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])
