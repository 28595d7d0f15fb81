"""`parallelism`, in the student's process: functions of one rank, which call `all_reduce`.

All ranks are in one process. A rank stops at the first `all_reduce` whose result is not known. When
all have stopped there, it is known, and all run again from the start.
"""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from course_pkg.grading.questions.calling import WrongUse, require_pair, require_type

Calls = list[tuple[str, Tensor]]  # operation and tensor of each all_reduce


class Waiting(BaseException):
    """A rank waits for the others. Not an Exception, which an answer may catch."""


def on_ranks(answer: Any, ranks: list[tuple]) -> tuple[list[Any], list[list[Tensor]]]:
    """What a function returns on each rank, and the tensors that each rank gave to `all_reduce`.

    ranks: the arguments of each rank, without `all_reduce`.
    """
    reduced: list[Tensor] = []
    while True:
        copies = [
            tuple(value.clone() if isinstance(value, Tensor) else value for value in arguments)
            for arguments in ranks
        ]
        results, calls = _attempt(answer, copies, reduced)
        if len({len(made) for made in calls}) > 1:
            raise WrongUse(
                "a rank called all_reduce and another one did not, so it would wait forever: "
                "every rank has to make the same calls"
            )
        if len(results) == len(ranks):
            _attempt(answer, ranks, reduced)  # so that a change of an argument is seen
            return results, [[tensor for _, tensor in made] for made in calls]
        operation = calls[0][-1][0]
        stacked = torch.stack([made[-1][1] for made in calls])
        reduced.append(stacked.sum(0) if operation == "sum" else stacked.amax(0))


def _attempt(
    answer: Any, ranks: list[tuple], reduced: list[Tensor]
) -> tuple[list[Any], list[Calls]]:
    """One run of every rank: results of those that have ended, and the calls of each."""
    results = []
    calls: list[Calls] = [[] for _ in ranks]
    for given, made in zip(ranks, calls, strict=True):

        def all_reduce(tensor: Tensor, operation: str = "sum", made: Calls = made) -> Tensor:
            require_type(tensor, Tensor, "a tensor for all_reduce")
            if operation not in ("sum", "max"):
                raise WrongUse(f'all_reduce: expected "sum" or "max", but {operation!r} was given')
            made.append((operation, tensor.detach().clone()))
            if len(made) > len(reduced):
                raise Waiting
            return tensor.copy_(reduced[len(made) - 1])

        with suppress(Waiting):
            results.append(answer(*given, all_reduce))
    return results, calls


def mlp(answer: Any, inputs: dict[str, Any]) -> list[Any]:
    """The output of each rank, and what each one gave to `all_reduce`."""
    ranks = inputs["ranks"]
    whole = [inputs[name] for name in ("x", "gate_up", "down", "bias")]
    return list(on_ranks(answer, [(*whole, rank, ranks) for rank in range(ranks)]))


def cross_entropy(answer: Any, inputs: dict[str, Any]) -> list[Any]:
    """Each rank's loss, its gradient, and what it gave to `all_reduce`."""
    shards = zip(inputs["logits"], inputs["first"], strict=True)
    ranks = [(logits, inputs["labels"], first) for logits, first in shards]
    results, sent = on_ranks(answer, ranks)
    losses, gradients = zip(*map(require_pair, results), strict=True)
    return [[_number(loss) for loss in losses], gradients, sent]


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
