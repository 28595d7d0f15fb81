"""The models that `perplexity` asks an answer to score texts with, and what is seen of their use.

Each has the interface of transformers' causal models: `model(input_ids=…, attention_mask=…,
position_ids=…).logits`. The Llama is the real one, with random weights; the others are so plain
that only one thing shows: what their predictions depend on is known.

Chapter: exercises.
"""

from typing import Any

import torch
from torch import nn

VOCABULARY = 24
POSITIONS = 64
LOUDER = 4.0  # on a random Llama's matrices, so that a token's context shows in what it costs


class Config:
    """What a caller may ask about a model."""

    def __init__(self, vocab_size: int, max_position_embeddings: int) -> None:
        self.vocab_size, self.max_position_embeddings = vocab_size, max_position_embeddings


class Output:
    """What a model returns: `logits`, (batch, length, vocabulary)."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class LastToken(nn.Module):
    """A bigram model: its logits depend on the last token alone, or on its absolute position too.

    placed: whether positions count, which are 0, 1, 2, … from the left edge unless they are
    given, as in GPT-2. The attention mask changes nothing.
    """

    def __init__(self, placed: bool, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.config = Config(VOCABULARY, POSITIONS)
        self.placed = placed
        self.tokens = nn.Embedding(VOCABULARY, VOCABULARY)
        self.places = nn.Embedding(POSITIONS, VOCABULARY)
        with torch.no_grad():
            for table in (self.tokens.weight, self.places.weight):
                table.normal_(generator=generator, std=1.5)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **others: Any,
    ) -> Output:
        """(batch, length) -> logits (batch, length, vocabulary)."""
        logits = self.tokens(input_ids)
        if self.placed:
            if position_ids is None:
                position_ids = torch.arange(input_ids.shape[1]).expand_as(input_ids)
            logits = logits + self.places(position_ids)
        return Output(logits)


def build_model(described: dict[str, Any]) -> nn.Module:
    """The model of a case: kind "llama", "bigram" or "bigram with positions", and its seed."""
    if described["kind"] == "llama":
        return build_llama(described)[0]
    return LastToken(described["kind"] == "bigram with positions", described["seed"]).eval()


def build_llama(described: dict[str, Any]) -> tuple[nn.Module, Any]:
    """The course's tiny Llama with the case's seed, its matrices louder, and its tokenizer."""
    from course_pkg.lm.load import load

    model, tokenizer = load("tiny", seed=described["seed"])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(LOUDER)
    return model, tokenizer


def real_tokens(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[list[int]]:
    """Each row's tokens without its pads, which are those where the mask is 0."""
    if attention_mask is None:
        return input_ids.tolist()
    pairs = zip(input_ids, attention_mask, strict=True)
    return [row[mask.bool()].tolist() for row, mask in pairs]


def _ids(args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    ids = kwargs.get("input_ids", args[0] if args else None)
    if not isinstance(ids, torch.Tensor):
        raise TypeError("the model was called without input_ids, a tensor of token ids")
    return ids


def watch(model: nn.Module) -> list[list[list[int]]]:
    """A list that grows with every forward pass: the real tokens of each row that went in."""
    passes: list[list[list[int]]] = []

    def note(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        passes.append(real_tokens(_ids(args, kwargs), mask))

    model.register_forward_pre_hook(note, with_kwargs=True)
    return passes


def foresee_after(model: nn.Module, pad: int) -> None:
    """Let the model be certain of what follows a pad, so that scoring it adds nothing.

    Then an answer that scores a text's first token after a pad shows that in the cases for it
    alone.
    """

    def change(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        ids = _ids(args, kwargs)
        after_pad = ids.eq(pad) & torch.arange(ids.shape[1]).lt(ids.shape[1] - 1)
        certain = nn.functional.one_hot(ids.roll(-1, dims=1), output.logits.shape[-1])
        certain = (certain.to(output.logits.dtype) - 1) * 1e4
        output.logits = torch.where(after_pad[..., None], certain, output.logits)
        return output

    model.register_forward_hook(change, with_kwargs=True)
