"""`perplexity`, in the student's process: models and a tokenizer, and how answers are called."""

from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.grading.questions.calling import WrongUse, require_pair

VOCABULARY = 24
ARGUMENTS = ("input_ids", "attention_mask", "window", "stride")  # those that a case has, in order
GAIN = 4.0  # on a random Llama's matrices, so that the context changes what a token costs
Values = dict[str, Any]


class Bigram(nn.Module):
    """A model with transformers' interface, whose logits depend on the last token and on `uses`.

    uses: "attention" adds something for every token attended to, "positions" for the absolute
    position, "batch" for the other texts' tokens at the same place, "windows:N" for every earlier
    token of the window, where the first N cost nothing; "" adds nothing. With the first two,
    scoring the token after a pad adds nothing.
    """

    def __init__(self, uses: str, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.uses, _, overlap = uses.partition(":")
        self.overlap = int(overlap or 0)
        self.config = SimpleNamespace(vocab_size=VOCABULARY)
        tables = 1.5 * torch.randn(3, 2 * VOCABULARY, VOCABULARY, generator=generator)
        self.last, self.context, self.positions = map(nn.Embedding.from_pretrained, tables)

    def forward(self, input_ids, attention_mask=None, position_ids=None, **others):
        """(batch, length) -> logits (batch, length, vocabulary)."""
        logits = self.last(input_ids)
        length = input_ids.shape[1]
        following = 40.0 * nn.functional.one_hot(input_ids.roll(-1, 1), VOCABULARY)
        if self.uses in ("attention", "positions"):
            logits = logits + following * (input_ids == 0)[..., None]
        if self.uses == "attention":
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            logits = logits + (self.context(input_ids) * mask[..., None]).cumsum(1)
        elif self.uses == "positions":
            left = torch.arange(length).expand_as(input_ids)
            logits = logits + self.positions(left if position_ids is None else position_ids)
        elif self.uses == "batch":
            logits = logits + self.context(input_ids).sum(0)
        elif self.uses == "windows":
            free = (torch.arange(length) < self.overlap - 1)[:, None]
            logits = logits + self.context(input_ids).cumsum(1) + following * free
        return SimpleNamespace(logits=logits)


def build(kind: str, seed: int) -> tuple[nn.Module, Any]:
    """For "llama" a random one and its tokenizer, else a `Bigram` that uses `kind`, and None."""
    if kind != "llama":
        return Bigram(kind, seed).eval(), None
    model, tokenizer = _llama(seed)
    return deepcopy(model), tokenizer


@lru_cache(maxsize=64)  # a copy takes a third of the time
def _llama(seed: int) -> tuple[nn.Module, Any]:
    from course_pkg.lm.load import load  # transformers takes seconds: not before it is needed

    model, tokenizer = load("tiny", seed=seed)
    for parameter in model.parameters():
        parameter.data *= GAIN if parameter.ndim == 2 else 1.0
    return model, tokenizer


def real_tokens(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """Each row's tokens without its pads, which are those where the mask is 0."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    return [ids[real.bool()].tolist() for ids, real in zip(input_ids, mask, strict=True)]


def call_with_model(answer: Callable[..., Any], inputs: Values) -> Values:
    """Call an answer with a model of the given kind and seed, and with its other inputs."""
    model, _ = build(inputs["kind"], inputs["seed"])
    arguments = [inputs[name] for name in ARGUMENTS if name in inputs]
    windows: list[list[int]] = []

    def record(module: nn.Module, args: tuple[Tensor, ...], kwargs: Values) -> None:
        ids = args[0] if args else kwargs["input_ids"]
        mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
        windows.extend(real_tokens(ids, mask))

    model.register_forward_pre_hook(record, with_kwargs=True)
    nll, tokens = _pair(answer(model, *arguments))
    return {"nll": nll, "tokens": tokens, "windows": windows}


def call_with_score(answer: Callable[..., Any], inputs: Values) -> Values:
    """Call an answer with a `score` that uses a Llama's own loss.

    If the case says so, it multiplies each NLL by the number of texts in the batch.
    """
    model, tokenizer = build("llama", inputs["seed"])
    tokenizer.padding_side = inputs["padding_side"]

    def score(input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        rows = [torch.tensor([row]) for row in real_tokens(input_ids, attention_mask)]
        tokens = torch.tensor([row.numel() - 1 for row in rows])
        if tokens.min() < 1:
            raise WrongUse("score got a text of fewer than two tokens")
        factor = len(rows) if inputs["_by_size"] else 1
        with torch.no_grad():
            nll = tokens * torch.stack([model(ids, labels=ids).loss for ids in rows])
        return factor * nll, tokens

    try:
        perplexity, nlls = _pair(answer(score, tokenizer, inputs["texts"], inputs["batch_size"]))
    except ValueError:
        if any(len(tokenizer(text).input_ids) >= 2 for text in inputs["texts"]):
            raise
        return {"raised": "ValueError", "nlls": torch.zeros(0)}
    return {"raised": "nothing", "perplexity": perplexity.tolist(), "nlls": nlls}


def _pair(returned: Any) -> list[Tensor]:
    return [torch.as_tensor(value).detach().double() for value in require_pair(returned)]
