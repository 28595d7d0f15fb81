"""Log-probabilities of the tokens of sequences under a causal language model, in batches.

Sequences of similar length share a batch. Pads are masked from attention and never scored. The
log-softmax is computed for a few positions at a time, so that there is never a second tensor of the
size of the logits, (batch, length, vocabulary).
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.common.arguments import require_choice, require_integer

# The fixed cost of a forward pass (reading all weights, starting kernels), in tokens of a large
# pass. Measured for SmolLM2 on a CPU; on an accelerator it is hundreds or thousands of tokens.
PASS_COST = {"cpu": 20, "other": 1000}
LOGITS_AT_ONCE = 2**26  # entries of a batch's logits: 256 MiB in fp32
CHUNK = 2**22  # entries per log-softmax: 16 MiB in fp32
PaddingSide = Literal["left", "right"]


def target_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """The log-probability, in nats and fp32, of each position's target, (...).

    logits: (..., vocabulary); those at position i must predict target i.

    >>> logits = torch.tensor([[0.0, 0.0], [3.0, 3.0]])
    >>> target_log_probs(logits, torch.tensor([0, 1])).exp()
    tensor([0.5000, 0.5000])
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            "logits must have the shape of targets and one more axis, the vocabulary: "
            f"got {tuple(logits.shape)} and {tuple(targets.shape)}"
        )
    vocabulary = logits.shape[-1]
    flat = logits.reshape(-1, vocabulary)
    ids = targets.reshape(-1)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise ValueError(
            f"target ids must be from 0 to {vocabulary - 1}, got {int(ids.min())} to "
            f"{int(ids.max())}: use the tokenizer that belongs to the model"
        )
    scores = torch.empty(ids.shape, dtype=torch.float32, device=logits.device)
    rows = max(1, CHUNK // vocabulary)
    for start in range(0, len(ids), rows):
        part = slice(start, start + rows)
        scores[part] = -F.cross_entropy(flat[part].float(), ids[part], reduction="none")
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
    """Compute each sequence's log-probabilities, in nats, of its tokens from position `first` on.

    They are fp32 tensors on the CPU. first: at least 1 (the default), because nothing predicts
    position 0; the tokens before it are context. Raises FloatingPointError if one is NaN.
    """
    _check_causal(model)
    first = [1] * len(sequences) if first is None else list(first)
    require_integer(batch_size, "batch_size")
    if len(first) != len(sequences) or min(first, default=1) < 1:
        raise ValueError(
            f"first must contain one position of at least 1 for each of {len(sequences)} "
            f"sequences, got {first}"
        )
    require_choice(padding_side, "padding_side", ("left", "right"))
    _check_ids(sequences, _vocabulary(model))
    scores = [torch.empty(0)] * len(sequences)
    scored = [i for i, ids in enumerate(sequences) if len(ids) > first[i]]
    lengths = [len(sequences[i]) - 1 for i in scored]  # the last token is a target only
    most_tokens = LOGITS_AT_ONCE // _vocabulary(model)
    cost = PASS_COST.get(next(model.parameters()).device.type, PASS_COST["other"])
    with torch.no_grad(), _evaluating(model):
        for batch in plan_batches(lengths, batch_size, most_tokens, cost):
            chosen = [scored[number] for number in batch]
            rows = [sequences[i] for i in chosen]
            starts = [first[i] for i in chosen]
            results = _score(model, rows, starts, padding_side == "left", pad_token_id)
            for i, result in zip(chosen, results, strict=True):
                scores[i] = result
    if bad := [i for i, score in enumerate(scores) if score.isnan().any()]:
        raise FloatingPointError(
            f"the model's log-probabilities for sequence {bad[0]} are NaN: check its weights for "
            "NaN, or load it in float32 if it is in half precision"
        )
    return scores


def plan_batches(
    lengths: Sequence[int], batch_size: int, most_tokens: int, pass_cost: int = PASS_COST["cpu"]
) -> list[list[int]]:
    """Divide sequences into batches so that forward passes and pads together cost least.

    A batch costs pass_cost plus its rows times its longest row, in tokens. The best batches contain
    neighbors in the order of length, so dynamic programming from short to long finds them. A batch
    has at most `most_tokens` with its pads, or a single row. Returns indices into `lengths`.

    >>> plan_batches([3, 300, 4, 3], batch_size=16, most_tokens=1000)
    [[1], [0, 3, 2]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    least = [0] * (len(order) + 1)
    cut = [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        rows = min(batch_size, end, max(1, most_tokens // max(1, longest)))
        starts = range(end - rows, end)
        least[end], cut[end] = min((least[i] + pass_cost + (end - i) * longest, i) for i in starts)
    batches = []
    end = len(order)
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
    """Run one forward pass; return each row's scores from position `first` on."""
    device = next(model.parameters()).device
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), pad_token_id)  # (n, T)
    real = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        columns = slice(longest - len(row), None) if left else slice(len(row))
        ids[i, columns] = torch.tensor(row)
        real[i, columns] = 1
    positions = (real.cumsum(-1) - 1).clamp(min=0)  # 0 at each row's first token
    scored = (real == 1) & (positions >= torch.tensor(first)[:, None])
    start = int(scored.any(0).nonzero()[0])  # the first column with a target
    inputs = {"input_ids": ids[:, :-1], "attention_mask": real[:, :-1]}
    inputs |= _optional(model, positions[:, :-1], longest - start)
    inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    logits = model(**inputs).logits[:, start - longest :]  # (n, T - start, V)
    scores = target_log_probs(logits, ids[:, start:].to(device)).cpu()
    return [score[keep] for score, keep in zip(scores, scored[:, start:], strict=True)]


def _optional(model: nn.Module, positions: Tensor, columns: int) -> dict[str, object]:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT model
    accepted = inspect.signature(inner.forward).parameters
    options = {"position_ids": positions, "use_cache": False, "logits_to_keep": columns}
    return {name: value for name, value in options.items() if name in accepted}


def _vocabulary(model: nn.Module) -> int:
    config = model.config
    return (config.get_text_config() if hasattr(config, "get_text_config") else config).vocab_size


def _check_ids(sequences: Sequence[Sequence[int]], vocabulary: int) -> None:
    for number, ids in enumerate(sequences):
        if isinstance(ids, str | int) or any(not isinstance(token, int) for token in ids):
            raise TypeError(f"sequence {number} must be a list of token ids, got {ids!r:.80}")
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            raise ValueError(
                f"token ids must be from 0 to {vocabulary - 1}, but those of sequence {number} go "
                f"from {min(ids)} to {max(ids)}: use the tokenizer that belongs to the model"
            )


def _check_causal(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    if config is None or not isinstance(model, nn.Module):
        raise TypeError(f"model must be a transformers language model, got {type(model).__name__}")
    causal = getattr(model, "can_generate", lambda: True)()
    if not causal or getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"model must predict each token from the tokens before it, got {type(model).__name__}; "
            "load it with AutoModelForCausalLM"
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode (no dropout), then restore every module's mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
