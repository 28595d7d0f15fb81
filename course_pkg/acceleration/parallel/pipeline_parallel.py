"""Pipeline parallelism: each rank has some layers, and the ranks pass activations and gradients on.

A `Pipeline` runs what a schedule gives its rank, on messages that don't block each other
(`pipeline_run`). Its stages are any modules, such as those of `split_decoder`.

What is easy to get wrong:

- The loss is divided once, by what the caller gives: the number of targets of all microbatches. A
  mean per microbatch would have to be divided by their number, and is wrong if they differ.
- With tied embeddings, first and last rank each have the weight and a part of its gradient. Both
  need the sum, and the norm counts it once.

A training step, on each rank:

    step = pipeline.run(microbatches, divisor)   # gradients of this rank's layers
    pipeline.sum_tied_gradients()
    norm = pipeline.clip_gradients(1.0)
    optimizer.step()

With data parallelism, sum the gradients over the replicas before the norm. Messages are tested with
gloo. Sources: GPipe (Huang et al. 2019), Megatron-LM (Narayanan et al. 2021). Chapter:
acceleration/model-parallelism.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.gradient_norm import clip_by_norm, global_norm
from course_pkg.acceleration.parallel.pipeline_run import Loss, Messages, Microbatch, Run
from course_pkg.acceleration.parallel.pipeline_stage import Stage
from course_pkg.acceleration.parallel.schedules import Schedule, check, forward_only
from course_pkg.acceleration.parallel.timeline import Event
from course_pkg.common.arguments import require_between


@dataclass(frozen=True)
class Step:
    """What `Pipeline.run` found on this rank.

    loss: of all microbatches, on every rank. events: when this rank did what, by time.monotonic.
    in_flight: the most microbatches held at once, counted per chunk; in_flight_bytes: the most
    bytes that autograd held for them.
    """

    loss: float
    events: tuple[Event, ...]
    in_flight: int
    in_flight_bytes: int


def split_batch(ids: Tensor, labels: Tensor, count: int) -> list[Microbatch]:
    """A batch as microbatches of rows; the first ones have a row more if needed.

    ids, labels: (rows, tokens). Raises ValueError unless there are 1 to `rows` microbatches.
    """
    if not 1 <= count <= len(ids):
        raise ValueError(f"{len(ids)} rows can't be split into {count} microbatches: use fewer")
    return list(zip(ids.tensor_split(count), labels.tensor_split(count), strict=True))


class Pipeline:
    """This rank's stages, run in the order of a schedule.

    modules: one `nn.Module` (or `Stage`) per chunk; chunk c of rank r is stage c·p + r, so with
    `split_decoder` they are `parts[rank::p]`. loss: from the last stage's output and the labels to
    the sum over the targets. activation: from a microbatch's ids to an empty tensor as a stage
    sends it; None means the modules' own, which `DecoderStage` has. timeout: seconds to wait for
    one message.

    A parameter that has one name on two ranks is tied: the second rank gets the first one's value.
    Raises ValueError if modules, schedule and group don't fit together.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module | Stage],
        schedule: Schedule,
        group: Group,
        loss: Loss,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        timeout: float = 60.0,
    ):
        check(schedule)
        if (schedule.ranks, schedule.chunks) != (group.size, len(modules)):
            raise ValueError(
                f"the schedule is for {schedule.ranks} ranks with {schedule.chunks} stages each, "
                f"but there are {group.size} ranks and {len(modules)} modules on this one"
            )
        require_between(timeout, "timeout", 0, math.inf)
        split = any(action.kind == "W" for action in schedule.actions[group.rank])
        self.stages = [m if isinstance(m, Stage) else Stage(m, split) for m in modules]
        self.schedule = schedule
        self.group = group
        self.loss = loss
        self.activation = activation or self.stages[0].module.activation
        self.timeout = timeout
        self.messages = Messages
        named = [stage.module.named_parameters() for stage in self.stages]
        self.parameters = {name: p for parameters in named for name, p in parameters}
        self.tied = self._find_tied()
        self._copy_tied()

    def run(self, microbatches: Sequence[Microbatch], divisor: float) -> Step:
        """Add the gradients of sum(losses) / divisor to this rank's parameters.

        microbatches: the same on all ranks of the pipeline; they may have different shapes.
        divisor: the number of targets of the batch, over all replicas. Raises ValueError for
        another number of microbatches than the schedule's, PipelineError if a message is missing.
        """
        require_between(divisor, "divisor", 0, math.inf)
        run = self._run(self.schedule, microbatches, lambda y, z: self.loss(y, z) / divisor)
        device = microbatches[0][0].device
        loss = torch.tensor(sum(run.results), dtype=torch.float64, device=device)
        self.group.broadcast(loss, source=self.group.size - 1)
        return Step(loss.item(), tuple(run.events), run.in_flight, run.in_flight_bytes)

    @torch.no_grad()
    def outputs(self, microbatches: Sequence[Microbatch]) -> list[Tensor]:
        """The last stage's outputs (logits), on the last rank; [] on the others. No gradients."""
        return self._run(forward_only(self.schedule), microbatches, None).results

    @torch.no_grad()
    def sum_tied_gradients(self) -> None:
        """Give both holders of a tied weight the sum of their gradients; once per step.

        A frozen weight has none.
        """
        for name, (first, second) in self.tied.items():
            parameter = self.parameters.get(name)
            if self.group.rank in (first, second) and parameter.requires_grad:
                other = second if self.group.rank == first else first
                gradient = parameter.grad
                gradient += self.group.exchange(
                    gradient, torch.empty_like(gradient), to=other, source=other
                )

    def counted_parameters(self) -> list[nn.Parameter]:
        """This rank's parameters, without those that an earlier rank has too."""
        return [
            parameter
            for name, parameter in self.parameters.items()
            if name not in self.tied or self.tied[name][0] == self.group.rank
        ]

    def gradient_norm(self) -> float:
        """The norm of the whole model's gradient, on every rank.

        Raises ValueError if the stages are tensor parallel: their squares are in two groups.
        """
        divided = [n for s in self.stages for n, m in s.module.named_modules() if _is_divided(m)]
        if divided:
            raise ValueError(
                f"{divided[0]} is divided among several ranks: sum the squares of `counted_"
                "parameters()` over its group too (gradient_norm.global_norm)"
            )
        gradients = [p.grad for p in self.counted_parameters() if p.grad is not None]
        return global_norm(gradients, self.group).item()

    def clip_gradients(self, max_norm: float) -> float:
        """Scale this rank's gradients if the whole norm is above `max_norm`; return that norm.

        As torch.nn.utils.clip_grad_norm_ in one process. Raises ValueError unless max_norm > 0, and
        as `gradient_norm` does.
        """
        norm = self.gradient_norm()
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        clip_by_norm(gradients, norm, max_norm)
        return norm

    def gather(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """On every rank, what all ranks have by their parameters' names; a tied one comes once."""
        whole: dict[str, Any] = {}
        for part in gather_objects(dict(named), self.group):
            for name, item in part.items():
                whole.setdefault(name, item)  # of a tied one, the first rank's
        return whole

    def state_dict(self) -> dict[str, Tensor]:
        """The whole model's parameters, on every rank; independent of the number of stages."""
        return self.gather({name: p.detach().clone() for name, p in self.parameters.items()})

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
        """The whole model's optimizer state by parameter name, on every rank."""
        return self.gather({name: dict(optimizer.state[p]) for name, p in self.parameters.items()})

    @torch.no_grad()
    def load_state_dict(
        self,
        parameters: Mapping[str, Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        optimizer_state: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Take this rank's part of what `state_dict` and `optimizer_state` gave, on any ranks."""
        missing = sorted(set(self.parameters) - set(parameters))
        if missing:
            raise ValueError(f"the state lacks {', '.join(missing)}: is it of another model?")
        for name, parameter in self.parameters.items():
            parameter.copy_(parameters[name])
            if optimizer and optimizer_state:
                copied = {key: value.clone() for key, value in optimizer_state[name].items()}
                optimizer.state[parameter] = copied

    def _run(
        self, schedule: Schedule, microbatches: Sequence[Microbatch], loss: Loss | None
    ) -> Run:
        messages = self.messages(self.group, microbatches, self.activation, self.timeout)
        return Run(self.stages, schedule, messages, loss).all_steps()

    def _find_tied(self) -> dict[str, tuple[int, int]]:
        holders: dict[str, list[int]] = {}
        for rank, names in enumerate(gather_objects(list(self.parameters), self.group)):
            for name in names:
                holders.setdefault(name, []).append(rank)
        many = [name for name, ranks in holders.items() if len(ranks) > 2]
        if many:
            raise ValueError(f"{', '.join(many)}: on more than two ranks; give them other names")
        return {name: (ranks[0], ranks[1]) for name, ranks in holders.items() if len(ranks) == 2}

    @torch.no_grad()
    def _copy_tied(self) -> None:
        for name, (first, second) in self.tied.items():
            if self.group.rank == first:
                self.group.send(self.parameters[name].detach(), second)
            elif self.group.rank == second:
                self.group.receive(self.parameters[name].detach(), first)


def _is_divided(module: nn.Module) -> bool:
    """Whether a module is one rank's part of a layer."""
    group = getattr(module, "group", None)
    return isinstance(group, Group) and group.size > 1


def gather_objects(item: Any, group: Group) -> list[Any]:
    """An object of each rank, by rank; on every rank."""
    items = [None] * group.size
    dist.all_gather_object(items, item, group=group.process_group)
    return items
