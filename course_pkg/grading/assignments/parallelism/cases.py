"""`parallelism`: its cases; right values: `acceleration.parallel`, or computed without shards."""

import math
from contextlib import suppress
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.schedules import Action, Schedule, one_f_one_b
from course_pkg.acceleration.parallel.timeline import simulate
from course_pkg.grading.questions.comparators import anything, array, number, row, wrong_type
from course_pkg.grading.questions.draws import normal_arrays

Inputs = dict[str, Any]
CLOSE = array(rtol=1e-5, atol=1e-5)


class _Waiting(Exception):
    """The next message has not come."""


class _Rank(Group):
    """One rank. received: the messages that have come."""

    def __init__(self, rank: int, size: int, received: list[Tensor]):
        self.rank = rank
        self.size = size
        self.algorithm = "ring"
        self.received = received
        self.sent: list[Tensor] = []

    def exchange(self, tensor: Tensor, into: Tensor, to: int, source: int) -> Tensor:
        """Keep what is sent; return what has come, or stop."""
        self.sent.append(tensor.clone())
        if len(self.sent) > len(self.received):
            raise _Waiting
        return into.copy_(self.received[len(self.sent) - 1])


def ring_all_reduce(tensors: list[Tensor]) -> tuple[list[list[Tensor]], list[int]]:
    """The tensors of all ranks after each step, and the bytes that each rank sends in all."""
    size = len(tensors)
    received: list[list[Tensor]] = [[] for _ in tensors]
    states = []
    for _ in range(2 * size - 1):
        states.append([tensor.clone() for tensor in tensors])
        ranks = [_Rank(rank, size, received[rank]) for rank in range(size)]
        for rank, tensor in zip(ranks, states[-1], strict=True):
            with suppress(_Waiting):
                rank.all_reduce(tensor)
        received = [ranks[rank - 1].sent for rank in range(size)]
    return states[1:], [sum(tensor.nbytes for tensor in rank.sent) for rank in ranks]


def ring_expected(inputs: Inputs) -> tuple[list[list[Tensor]], list[int]]:
    """The tensors of all ranks after each step, and the bytes that each rank sends."""
    return ring_all_reduce(inputs["tensors"])


def draw_tensors(rng: Random, size: int, *, uneven: bool = False, typed: bool = False) -> Inputs:
    """A tensor for each rank. uneven: from one chunk to all but two are longer than the others."""
    ranks = rng.randint(3, 4) if uneven else 2 + size
    length = size * ranks + rng.randint(1, ranks - 2) if uneven else rng.randint(1, 3) * ranks
    arrays = normal_arrays(rng, **{f"rank_{rank}": length for rank in range(ranks)})
    dtype = ("float32", "float64", "float16")[size] if typed else "float32"
    return {"tensors": [numbers.astype(dtype) for numbers in arrays.values()]}


def _states(expected: Any, given: Any, half: int | None = None) -> str | None:
    """The tensors of all ranks after each step, or after each step of one half."""
    if not isinstance(given, list | tuple):
        return wrong_type(f"a list of {len(expected)} steps", given)
    if len(given) != len(expected):
        return f"expected a list of {len(expected)} steps, but {len(given)} were given"
    ranks = row({f"rank {rank}": CLOSE for rank in range(len(expected[0]))})
    steps = len(expected) // 2
    part = slice(None) if half is None else slice(half * steps, (half + 1) * steps)
    names = [f"after step {step}" for step in range(2 * steps)]
    return row(dict.fromkeys(names[part], ranks))(expected[part], given[part])


every_step = row({"states": _states, "sent": row(each=number())})
reduce_steps = row({"states": partial(_states, half=0), "sent": anything()})
gather_steps = row({"states": partial(_states, half=1), "sent": anything()})
sent_bytes = row({"states": anything(), "sent": row(each=number())})


def mlp_expected(inputs: Inputs) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The output, on every rank; the part of each rank's hidden units."""
    x, gate_up, down, bias = (inputs[name].double() for name in ("x", "gate_up", "down", "bias"))
    gate, up = (x @ gate_up.T).chunk(2, 1)
    own = torch.arange(gate.shape[1]).chunk(inputs["ranks"])
    parts = [(F.silu(gate) * up)[:, units] @ down[:, units].T for units in own]
    return [sum(parts) + bias] * len(parts), [[part] for part in parts]


def draw_layer(rng: Random, size: int, *, bias: bool = False) -> Inputs:
    """A gated MLP for two to four ranks. Without a bias, it is zero."""
    ranks = features = 2 + size
    hidden = ranks * rng.randint(2, 3)
    shapes = {"gate_up": (2 * hidden, features), "down": (features, hidden), "bias": (features,)}
    inputs = normal_arrays(rng, x=(2, features), **shapes)
    inputs["bias"] *= float(bias)
    return inputs | {"ranks": ranks}


output = row({"output": row(each=array(rtol=1e-4)), "sent": anything()})
one_part = row({"output": anything(), "sent": row(each=row(each=array(rtol=1e-4)))})


def cross_entropy_expected(inputs: Inputs) -> tuple[list[float], list[Tensor], list[list[Tensor]]]:
    """torch's loss of the whole logits, on every rank; its gradient; what each rank sends."""
    shards, labels = inputs["logits"], inputs["labels"]
    logits = torch.cat(shards, 1).double().requires_grad_()
    loss = F.cross_entropy(logits, labels, reduction="sum") / (labels != -100).sum().clamp(min=1)
    (gradient,) = torch.autograd.grad(loss, logits)
    widths = [shard.shape[1] for shard in shards]
    is_label = (torch.arange(sum(widths)) == labels[:, None]).split(widths, 1)
    largest = torch.cat(shards, 1).amax(1, keepdim=True)
    sent = [
        [shard.amax(1), (shard - largest).exp().sum(1), shard.where(own, 0.0).sum(1)]
        for shard, own in zip(shards, is_label, strict=True)
    ]
    return [loss.item()] * len(shards), list(gradient.split(widths, 1)), sent


def draw_logits(rng: Random, size: int, *, shift: bool = False, ignored: bool = False) -> Inputs:
    """Shards of uneven widths, each with the label of one token.

    shift: so far from 0 that exp overflows or is 0. ignored: all labels but `size` are -100.
    """
    widths = [rng.randint(2, 4) for _ in range(2 + size)]
    first = list(accumulate(widths[:-1], initial=0))
    labels = [start + rng.randrange(n) for start, n in zip(first, widths, strict=True)]
    rng.shuffle(labels)
    if ignored:
        labels[size:] = [-100, -100]
        rng.shuffle(labels)
    names = {f"rank_{rank}": (len(labels), width) for rank, width in enumerate(widths)}
    logits = list(normal_arrays(rng, **names).values())
    if shift:
        logits = [(shard * 64).round() / 64 + (150, -400, 1000)[size] for shard in logits]
    return {"logits": logits, "labels": torch.tensor(labels), "first": first}


# Logits of 1000 are rounded to 6e-5.
LOSSES = row(each=number(rtol=1e-3, atol=1e-4))
GRADIENTS = row(each=array(rtol=1e-3, atol=1e-6))
SENT = row(each=row(each=array(rtol=1e-3, atol=1e-6)))
loss = row({"loss": LOSSES, "gradient": anything(), "sent": anything()})
gradient = row({"loss": anything(), "gradient": GRADIENTS, "sent": anything()})
finite = row({"loss": LOSSES, "gradient": row(each=array(atol=math.inf)), "sent": anything()})
both = row({"loss": LOSSES, "gradient": GRADIENTS, "sent": anything()})
three_numbers = row({"loss": anything(), "gradient": anything(), "sent": SENT})


def zero_bytes_expected(inputs: Inputs) -> int:
    """Bytes on the rank that has most: what a stage divides comes before it."""
    whole = inputs["parameters"]
    largest = -(-whole // inputs["ranks"])
    counts = [largest if inputs["stage"] >= stage else whole for stage in (3, 2, 1)]
    return sum(count * size for count, size in zip(counts, inputs["sizes"], strict=True))


def draw_model(rng: Random, size: int, *, uneven: bool = False) -> Inputs:
    """Stages 0 to 3. uneven: stage 3, with a shorter last shard."""
    ranks = rng.randint(3, 8)
    parameters = ranks * rng.randint(5, 900) + (rng.randint(1, ranks - 1) if uneven else 0)
    sizes = [*rng.sample([2, 4], 2), rng.choice([6, 8, 12])]
    stage = 3 if uneven else size
    return {"parameters": parameters, "ranks": ranks, "stage": stage, "sizes": sizes}


def fewest_gpus_expected(inputs: Inputs) -> int:
    """The smallest number of GPUs, or 0."""
    room = inputs["capacity"] - inputs["activations"]
    numbers = range(1, inputs["most"] + 1)
    return next((n for n in numbers if zero_bytes_expected({**inputs, "ranks": n}) <= room), 0)


def draw_cluster(rng: Random, size: int, *, limit: bool = False) -> Inputs:
    """A model that fits on some GPUs. limit: exactly, or a byte is missing, or a GPU is."""
    inputs = draw_model(rng, min(size + 1, 3), uneven=limit)
    ranks = 1 if size == 3 else inputs["ranks"]
    inputs["parameters"] = 2520 * ranks * rng.randint(5, 40) + ((0, 1, 0)[size] if limit else 0)
    need = zero_bytes_expected({**inputs, "ranks": ranks})
    slack = zero_bytes_expected({**inputs, "ranks": ranks - 1}) - need if ranks > 1 else need
    inputs["activations"] = need // rng.randint(2, 4)
    inputs["capacity"] = inputs["activations"] + need + slack // rng.randint(2, 9)
    inputs["most"] = ranks + rng.randint(20, 40)
    if limit:
        inputs["capacity"] = inputs["activations"] + need - (0, 1, 0)[size]
        inputs["most"] = ranks + (0, 20, -1)[size]
    del inputs["ranks"]
    return inputs


def schedule_expected(inputs: Inputs) -> list[tuple[str, int]]:
    """1F1B, of one rank."""
    return _one_f_one_b(inputs["ranks"], inputs["microbatches"])[inputs["rank"]]


def _one_f_one_b(ranks: int, microbatches: int) -> list[list[tuple[str, int]]]:
    """Of all ranks."""
    actions = one_f_one_b(ranks, microbatches).actions
    return [[(action.kind, action.microbatch) for action in order] for order in actions]


def draw_rank(rng: Random, size: int, *, few: bool = False) -> Inputs:
    """More microbatches than ranks. few: fewer than the warm-up would have."""
    ranks = rng.randint(6, 10) + size
    rank = rng.randint(0, ranks - 6) if few else rng.randint(1, ranks - 2)
    microbatches = rng.randint(2, ranks - rank - 2) if few else ranks + rng.randint(1, 3)
    return {"rank": rank, "ranks": ranks, "microbatches": microbatches}


def simulate_expected(inputs: Inputs) -> tuple[float, float, list[int]]:
    """The course's simulation of a schedule with these orders."""
    orders = inputs["orders"]
    actions = tuple(tuple(Action(kind, i) for kind, i in order) for order in orders)
    schedule = Schedule("given", len(orders[0]) // 2, 1, actions)
    timeline = simulate(schedule, {"F": inputs["forward"], "B": inputs["backward"]})
    held = [schedule.in_flight(rank) for rank in range(len(orders))]
    return timeline.makespan, timeline.bubble, held


def draw_orders(rng: Random, size: int) -> Inputs:
    """1F1B, then actions in a random order in which each has what it needs."""
    ranks, microbatches = 2 + (size + 1) // 2, rng.randint(3, 4) + size
    orders = _one_f_one_b(ranks, microbatches)
    if size > 0:
        orders = [[] for _ in range(ranks)]
        forwards, backwards = [microbatches] + [0] * ranks, [0] * ranks  # forwards[0]: given
        while len(orders[0]) < 2 * microbatches:
            rank = rng.randrange(ranks)
            ready = backwards[rank + 1] if rank + 1 < ranks else forwards[ranks]
            if forwards[rank + 1] < forwards[rank] and rng.random() < 0.5:
                orders[rank].append(("F", forwards[rank + 1]))
                forwards[rank + 1] += 1
            elif backwards[rank] < ready:
                orders[rank].append(("B", backwards[rank]))
                backwards[rank] += 1
    forward = rng.choice([0.5, 1.0, 1.5])
    return {"orders": orders, "forward": forward, "backward": forward + rng.choice([0.5, 1.0, 2.0])}


seconds = row({"seconds": number(rtol=1e-3), "bubble": anything(), "in_flight": anything()})
bubble = row({"seconds": anything(), "bubble": number(atol=1e-3), "in_flight": anything()})
in_flight = row({"seconds": anything(), "bubble": anything(), "in_flight": row(each=number())})
