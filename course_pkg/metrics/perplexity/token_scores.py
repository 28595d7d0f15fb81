"""Log-probabilities that a causal language model gives to the tokens of sequences, in batches.

Sequences of like length share a batch, so that little is computed for pads. Pads are masked from
attention, never scored, and keep positions right on either side. The log-softmax is taken a few
positions at a time and only the target's entry kept, so that beside the logits no second tensor
of (batch, length, vocabulary) is ever made.
This module takes token ids. Texts, windows and units are the business of perplexity.

Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", section 2 (a softmax over the
words that can come next). Chapter: metrics/perplexity.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# What a forward pass costs beside its tokens (to read all weights, to start kernels), in tokens of
# a large pass. Measured for SmolLM2 on a CPU; on an accelerator it is some hundreds or thousands.
PASS_COST = {"cpu": 20, "other": 1000}
LOGITS_AT_ONCE = 2**26  # entries of a batch's logits: 256 MiB in fp32
CHUNK = 2**22  # entries whose log-softmax is made at once: 16 MiB in fp32
PaddingSide = Literal["left", "right"]


def target_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """The log-probability, in nats, of each position's target.

    logits: (..., vocabulary), of any floating type. targets: (...), token ids; position
    i's logits must be those that predict target i. Returns (...) in fp32: the target's
    entry of the log-softmax, logit - logsumexp over the vocabulary. Raises ValueError if
    the shapes do not fit or an id is outside the vocabulary.

    >>> logits = torch.tensor([[0.0, 0.0], [3.0, 3.0]])
    >>> target_log_probs(logits, torch.tensor([0, 1])).exp()
    tensor([0.5000, 0.5000])
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} do not fit: "
            "logits have one more axis, the vocabulary"
        )
    vocabulary = logits.shape[-1]
    flat, wanted = logits.reshape(-1, vocabulary), targets.reshape(-1)
    if wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < vocabulary:
        raise ValueError(
            f"target ids run from {int(wanted.min())} to {int(wanted.max())}, the vocabulary "
            f"from 0 to {vocabulary - 1}: model and tokenizer do not belong together"
        )
    scores = torch.empty(wanted.shape, dtype=torch.float32, device=logits.device)
    rows = max(1, CHUNK // vocabulary)
    for start in range(0, len(wanted), rows):
        part = slice(start, start + rows)
        scores[part] = -F.cross_entropy(flat[part].float(), wanted[part], reduction="none")
    return scores.reshape(targets.shape)


def token_log_probs(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    first: Sequence[int] | None = None,
    batch_size: int = 16,
    padding_side: PaddingSide = "right",
    pad_token_id: int = 0,
) -> list[Tensor]:
    """For each sequence the log-probabilities, in nats, of its tokens from position `first` on.

    sequences: token ids, each of any length. first: per sequence the first position to score,
    at least 1 (the default), because nothing predicts position 0; the tokens before it are
    context. pad_token_id: any id; what stands in a pad does not matter. Returns, in the order
    of the sequences, fp32 tensors on the CPU of length max(0, len(sequence) - first).
    The model is in evaluation mode meanwhile, and afterwards in the modes it was in.
    Raises ValueError for a model that is not causal, a batch_size or first below 1, another
    padding side; FloatingPointError if a score is NaN.

    >>> from course_pkg.lm.load import load
    >>> scores = token_log_probs(load("tiny").model, [[65, 66, 67], [68, 69]])
    >>> [len(score) for score in scores]
    [2, 1]
    """
    _check_causal(model)
    first = [1] * len(sequences) if first is None else list(first)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; an integer of at least 1 is wanted")
    if len(first) != len(sequences) or min(first, default=1) < 1:
        raise ValueError(
            f"first is {first} for {len(sequences)} sequences: one per sequence is wanted, each "
            "at least 1"
        )
    if padding_side not in ("left", "right"):
        raise ValueError(f'padding_side must be "left" or "right", got {padding_side!r}')
    scores = [torch.empty(0)] * len(sequences)
    scored = [i for i, ids in enumerate(sequences) if len(ids) > first[i]]
    lengths = [len(sequences[i]) - 1 for i in scored]  # the last token is a target only
    most = LOGITS_AT_ONCE // _vocabulary(model)
    cost = PASS_COST.get(next(model.parameters()).device.type, PASS_COST["other"])
    with torch.no_grad(), _evaluating(model):
        for batch in plan_batches(lengths, batch_size, most, cost):
            chosen = [scored[number] for number in batch]
            rows = [sequences[i] for i in chosen]
            starts = [first[i] for i in chosen]
            results = _score(model, rows, starts, padding_side == "left", pad_token_id)
            for i, result in zip(chosen, results, strict=True):
                scores[i] = result
    if bad := [i for i, score in enumerate(scores) if score.isnan().any()]:
        raise FloatingPointError(
            f"the model's log-probabilities for sequence {bad[0]} are NaN: look for NaN in its "
            "weights, or load it in float32 if it is in half precision"
        )
    return scores


def plan_batches(
    lengths: Sequence[int],
    batch_size: int,
    most_tokens: int,
    pass_cost: int = PASS_COST["cpu"],
) -> list[list[int]]:
    """Cut sequences into batches so that passes and pads together cost least.

    A batch costs pass_cost plus its rows times its longest row, in tokens. Only neighbors
    in length need share one, so the best cut is found from short to long by dynamic
    programming. batch_size: at most so many rows. most_tokens: at most so many with pads,
    except a single row. Returns lists of indices into `lengths`, the longest first.

    >>> plan_batches([3, 300, 4, 3], batch_size=16, most_tokens=1000)
    [[1], [0, 3, 2]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    least, cut = [0] * (len(order) + 1), [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        rows = min(batch_size, end, max(1, most_tokens // max(1, longest)))
        starts = range(end - rows, end)
        least[end], cut[end] = min((least[i] + pass_cost + (end - i) * longest, i) for i in starts)
    batches, end = [], len(order)
    while end:
        batches.append(order[cut[end] : end])
        end = cut[end]
    return batches


def _score(
    model: nn.Module,
    rows: Sequence[Sequence[int]],
    first: Sequence[int],
    left: bool,
    pad_token_id: int,
) -> list[Tensor]:
    """One forward pass; per row its scores from `first` on."""
    device = next(model.parameters()).device
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), pad_token_id)  # (n, T)
    real = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), None) if left else slice(len(row))
        ids[i, place] = torch.tensor(row)
        real[i, place] = 1
    positions = (real.cumsum(-1) - 1).clamp(min=0)  # first token at 0 on either side
    wanted = (real == 1) & (positions >= torch.tensor(first)[:, None])
    start = int(wanted.any(0).nonzero()[0])  # the first column that holds a target
    inputs = {"input_ids": ids[:, :-1], "attention_mask": real[:, :-1]}
    inputs |= _optional(model, positions[:, :-1], longest - start)
    inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    logits = model(**inputs).logits[:, start - longest :]  # (n, T - start, V)
    scores = target_log_probs(logits, ids[:, start:].to(device)).cpu()
    return [score[keep] for score, keep in zip(scores, wanted[:, start:], strict=True)]


def _optional(model: nn.Module, positions: Tensor, columns: int) -> dict[str, object]:
    """The arguments that not every model takes: positions, no cache, logits of the last columns."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # of PEFT
    known = inspect.signature(inner.forward).parameters
    offered = {"position_ids": positions, "use_cache": False, "logits_to_keep": columns}
    return {name: value for name, value in offered.items() if name in known}


def _vocabulary(model: nn.Module) -> int:
    config = model.config
    return (config.get_text_config() if hasattr(config, "get_text_config") else config).vocab_size


def _check_causal(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    if config is None or not isinstance(model, nn.Module):
        raise TypeError(f"model must be a transformers language model, got {type(model).__name__}")
    causal = getattr(model, "can_generate", lambda: True)()
    if not causal or getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{type(model).__name__} does not predict each token from those before it; load the "
            "model with AutoModelForCausalLM"
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout); then every module's own mode again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
