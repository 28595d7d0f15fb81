"""What parallel training must equal: a small decoder, its batches, and its training by one process.

Every function is deterministic, so each rank can build the same decoder and the same batches.
"""

import dataclasses
import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.data_parallel import rank_batches
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.decoder_config import DecoderConfig

STEPS = 5
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 0.1
CLIP = 0.3  # below the norms that occur, so clipping is used
IGNORED = -100


@dataclasses.dataclass(frozen=True)
class Run:
    """losses: of each step, nats per target. norms: of the gradient before clipping, by step.

    logits: of the first batch before training. gradients: of the first step, before clipping.
    parameters: after the last step.
    """

    losses: list[float]
    norms: list[float]
    logits: Tensor
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def small_decoder(seed: int = 0, **changes) -> Decoder:
    """Random weights: 4 layers, 4 heads, 2 key-value heads, tied embeddings, unless changed."""
    config = DecoderConfig.from_dict(
        {
            "model_type": "llama",
            "vocab_size": 48,
            "hidden_size": 24,
            "intermediate_size": 36,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
        }
        | changes
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        decoder = Decoder(config)
        for parameter in decoder.parameters():
            nn.init.normal_(parameter, std=0.2)
    return decoder


def batches(rows: int = 4, tokens: int = 12, vocab: int = 48) -> list[tuple[Tensor, Tensor]]:
    """STEPS pairs of ids and labels, (rows, tokens); each row ignores another number of labels."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(STEPS):
        ids = torch.randint(vocab, (rows, tokens + 1), generator=generator)
        labels = ids[:, 1:].clone()
        for row in range(rows):
            labels[row, : (3 * row + 2) % tokens] = IGNORED
        made.append((ids[:, :-1], labels))
    return made


def uneven_batches() -> list[tuple[Tensor, Tensor]]:
    """Five batches for up to 3 ranks: one leaves a rank without targets, one without rows."""
    data = batches(rows=5)
    data[1][1][4] = IGNORED  # the only row of the last of 3 ranks
    data[2] = (data[2][0][:2], data[2][1][:2])
    return data


def own_rows(group: Group, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a batch that a rank of data parallelism trains on."""
    rows = next(rank_batches(len(ids), len(ids), rank=group.rank, ranks=group.size))
    return ids[rows], labels[rows]


def all_equal(tensor: Tensor, group: Group) -> bool:
    """Whether a tensor has the same bits on all ranks; each rank gets the answer."""
    every = group.all_gather(tensor.detach()[None])
    return all(torch.equal(left, right) for left, right in itertools.pairwise(every))


def assert_same(run: Run, alone: Run, tolerance: float = 1e-5) -> None:
    """Losses, norms, logits, gradients and parameters of two runs."""
    for name in ("losses", "norms", "logits", "gradients", "parameters"):
        pair = getattr(run, name), getattr(alone, name)
        try:
            torch.testing.assert_close(*pair, atol=tolerance, rtol=0)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over the targets; logits: (…, tokens, vocab), labels: (…, tokens)."""
    return F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def train(decoder: Decoder, data: list[tuple[Tensor, Tensor]], step: Callable) -> Run:
    """What `step(ids, labels)` returns for the batches: loss, gradients, norm before clipping."""
    with torch.no_grad():
        logits = decoder(data[0][0])
    losses, gradients, norms = zip(*(step(*batch) for batch in data), strict=True)
    parameters = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    return Run(list(losses), list(norms), logits, gradients[0], parameters)


def train_alone(decoder: Decoder, data: list[tuple[Tensor, Tensor]]) -> Run:
    """AdamW with clipping, one batch a step; each target of a batch has the same weight."""
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def step(ids: Tensor, labels: Tensor) -> tuple[float, dict[str, Tensor], float]:
        optimizer.zero_grad()
        loss = loss_sum(decoder(ids), labels) / (labels != IGNORED).sum()
        loss.backward()
        trained = {name: p for name, p in decoder.named_parameters() if p.requires_grad}
        gradients = {name: p.grad.clone() for name, p in trained.items()}
        norm = nn.utils.clip_grad_norm_(decoder.parameters(), CLIP)
        optimizer.step()
        return loss.item(), gradients, norm.item()

    return train(decoder, data, step)
