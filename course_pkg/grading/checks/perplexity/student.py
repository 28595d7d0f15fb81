"""`perplexity`, beside the student: builds models and a tokenizer, and calls answers with them.

Chapter: exercises.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.lm.load import load

VOCABULARY = 24
GAIN = 4.0  # on a random Llama's matrices, so that the context changes what a token costs
Values = dict[str, Any]


class Bigram(nn.Module):
    """A model with transformers' interface, whose logits depend on the last token and on `uses`.

    uses: "attention" adds something for every token attended to, "positions" for the absolute
    position, "" nothing. The first two make sure that scoring the token after a pad adds nothing.
    """

    def __init__(self, uses: str, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.uses, self.config = uses, SimpleNamespace(vocab_size=VOCABULARY)
        tables = 1.5 * torch.randn(3, 2 * VOCABULARY, VOCABULARY, generator=generator)
        self.last, self.context, self.positions = map(nn.Embedding.from_pretrained, tables)

    def forward(self, input_ids, attention_mask=None, position_ids=None, **others):
        """(batch, length) -> logits (batch, length, vocabulary)."""
        logits = self.last(input_ids)
        if self.uses:
            following = nn.functional.one_hot(input_ids.roll(-1, 1), VOCABULARY)
            logits = logits + 40.0 * following * (input_ids == 0)[..., None]
        if self.uses == "attention":
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            logits = logits + (self.context(input_ids) * mask[..., None]).cumsum(1)
        if self.uses == "positions":
            left = torch.arange(input_ids.shape[1]).expand_as(input_ids)
            logits = logits + self.positions(left if position_ids is None else position_ids)
        return SimpleNamespace(logits=logits)


def build(kind: str, seed: int) -> tuple[nn.Module, Any]:
    """For "llama" a random one and its tokenizer, else a `Bigram` that uses `kind`, and None."""
    if kind != "llama":
        return Bigram(kind, seed).eval(), None
    model, tokenizer = load("tiny", seed=seed)
    for parameter in model.parameters():
        parameter.data *= GAIN if parameter.ndim == 2 else 1.0
    return model, tokenizer


def real_tokens(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """Each row's tokens without its pads, which are those where the mask is 0."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    return [ids[real.bool()].tolist() for ids, real in zip(input_ids, mask, strict=True)]


def call_with_model(answer: Callable[..., Any], inputs: Values) -> Values:
    """Call an answer with a model of the given kind and seed, and with the inputs after these."""
    kind, seed, *given = inputs.values()
    model, _ = build(kind, seed)
    passes: list[list[list[int]]] = []

    def record(module: nn.Module, args: tuple[Tensor, ...], kwargs: Values) -> None:
        ids = args[0] if args else kwargs["input_ids"]
        mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
        passes.append(real_tokens(ids, mask))

    model.register_forward_pre_hook(record, with_kwargs=True)
    nll, tokens = _pair(answer(model, *given))
    windows = [row for rows in passes for row in rows]
    return {"nll": nll, "tokens": tokens, "passes": len(passes), "windows": windows}


def call_with_score(answer: Callable[..., Any], inputs: Values) -> Values:
    """Call an answer with a `score` that uses a Llama's own loss; record the batches' sizes."""
    model, tokenizer = build("llama", inputs["seed"])
    tokenizer.padding_side = inputs["padding_side"]
    batches: list[int] = []

    def score(input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        rows = [torch.tensor([row]) for row in real_tokens(input_ids, attention_mask)]
        tokens = torch.tensor([row.numel() - 1 for row in rows])
        batches.append(len(rows))
        if tokens.min() < 1:
            raise RuntimeError("score got a text of fewer than two tokens")
        with torch.no_grad():
            return tokens * torch.stack([model(ids, labels=ids).loss for ids in rows]), tokens

    try:
        perplexity, nlls = _pair(answer(score, tokenizer, inputs["texts"], inputs["batch_size"]))
    except ValueError:
        if any(len(tokenizer(text).input_ids) >= 2 for text in inputs["texts"]):
            raise
        return {"raised": "ValueError", "nlls": torch.zeros(0)}
    values = {"perplexity": perplexity.tolist(), "nlls": nlls, "batches": sorted(batches)}
    return {"raised": "nothing", **values}


def _pair(returned: Any) -> list[Tensor]:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise TypeError(f"your function returned {type(returned).__name__}; expected a pair")
    return [torch.as_tensor(value).detach().double() for value in returned]
