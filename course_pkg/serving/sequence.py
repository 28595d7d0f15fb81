"""A sequence: one prompt and the tokens generated after it, as block manager and scheduler see it.

A request for several samples has one sequence per sample.
"""

from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(eq=False)
class Sequence:
    """What was asked, and how far it is.

    Attributes:
        id: unique among the sequences of a scheduler.
        stop: generated tokens that end the sequence before max_new_tokens.
        priority: 0 is the most urgent.
        cache_key: what changes keys and values besides the tokens, such as the adapter.
        prompt_logprobs: the logits of all prompt tokens are wanted, so none may come from the
            prefix cache before the first new token.
        cache_salt: blocks are shared only under the same cache_key and salt; None counts as a salt.

    Example:

        >>> sequence = Sequence("a", [5, 6, 7], max_new_tokens=2)
        >>> sequence.add(8), sequence.add(9)
        (None, 'length')
    """

    id: int | str
    prompt: list[int]
    max_new_tokens: int = 16
    stop: frozenset[int] = frozenset()
    priority: int = 0
    cache_key: str = ""
    prompt_logprobs: bool = False
    cache_salt: str | None = None

    tokens: list[int] = field(init=False)  # the prompt, then the new tokens
    finish_reason: Literal["length", "stop", "abort"] | None = field(init=False, default=None)
    hit_tokens: int = field(init=False, default=0)  # from the cache, when it was first admitted
    preemptions: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not self.prompt or self.max_new_tokens < 1:
            raise ValueError(
                f"sequence {self.id!r} has {len(self.prompt)} prompt tokens and max_new_tokens "
                f"{self.max_new_tokens}: give at least 1 of each"
            )
        self.tokens = list(self.prompt)

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    def add(self, token: int) -> Literal["length", "stop", "abort"] | None:
        """Append a generated token; return the finish reason if it is the last."""
        self.tokens.append(token)
        if token in self.stop:
            self.finish_reason = "stop"
        elif len(self.tokens) == len(self.prompt) + self.max_new_tokens:
            self.finish_reason = "length"
        return self.finish_reason

    @property
    def takes_hits(self) -> bool:
        """Whether it may start with blocks that others have computed."""
        return not self.prompt_logprobs or len(self.tokens) > len(self.prompt)

    def copy(self, id: int | str) -> "Sequence":
        """Another sample of the same request, with the same tokens so far."""
        child = replace(self, id=id)
        child.tokens = list(self.tokens)
        return child
