"""What each rank of a pipeline does, and in which order: schedules without tensors.

A pipeline of p ranks cuts the model into stages, and a batch into m microbatches. The order in
which a rank takes them decides how long it idles (the bubble) and how many microbatches wait for
their backward pass (activations in flight, which take memory). Letters are those of
torch.distributed.pipelining: F forward, B backward, I and W its halves for inputs and weights.

Sources: GPipe (Huang et al. 2019), 1F1B (PipeDream, Narayanan et al. 2019), interleaved
(Megatron-LM, Narayanan et al. 2021), ZB-H1 (Qi et al. 2023, section 2).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from course_pkg.common.arguments import require_integer

KINDS = ("F", "B", "I", "W")


class Action(NamedTuple):
    """One pass of one microbatch through one chunk of a rank; kind: F, B, I or W."""

    kind: str
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        chunk = f".{self.chunk}" if self.chunk else ""
        return f"{self.kind}{self.microbatch}{chunk}"


class Value(NamedTuple):
    """What a stage computes: an "activation" for the next one, a "gradient" for the one before."""

    kind: str
    stage: int  # the one that computes it
    microbatch: int


class Send(NamedTuple):
    """A step of a rank: send a value to a rank, and go on."""

    value: Value
    to: int


class Receive(NamedTuple):
    """A step of a rank: begin to receive a value from a rank, and go on."""

    value: Value
    source: int


@dataclass(frozen=True)
class Schedule:
    """What each rank does, in its order."""

    name: str
    microbatches: int
    chunks: int  # how many stages a rank has
    actions: tuple[tuple[Action, ...], ...]  # of each rank

    @property
    def ranks(self) -> int:
        """p, the number of ranks."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """The number of stages, over all ranks."""
        return self.ranks * self.chunks

    def in_flight(self, rank: int) -> int:
        """The most microbatches, counted per chunk, that a rank holds at once: from F to B or W."""
        held = most = 0
        for action in self.actions[rank]:
            if action.kind == "F":
                held += 1
                most = max(most, held)
            elif action.kind in "BW":
                held -= 1
        return most


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes: every rank holds m microbatches.

    Example:

        >>> from course_pkg.acceleration.parallel.timeline import simulate
        >>> print(simulate(gpipe(2, 3), {"F": 1, "B": 1}).chart())
        rank 0  F0 F1 F2 .  .  B0 B1 B2
        rank 1  .  F0 F1 F2 B0 B1 B2 .
    """
    require_integer(ranks, "ranks")
    require_integer(microbatches, "microbatches")
    forward = [Action("F", i) for i in range(microbatches)]
    backward = [Action("B", i) for i in range(microbatches)]
    return Schedule("GPipe", microbatches, 1, (tuple(forward + backward),) * ranks)


def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """1F1B: rank r does p − r − 1 forward passes, then alternates; it holds at most p − r.

    Example:

        >>> from course_pkg.acceleration.parallel.timeline import simulate
        >>> print(simulate(one_f_one_b(2, 3), {"F": 1, "B": 1}).chart())
        rank 0  F0 F1 .  B0 F2 B1 .  B2
        rank 1  .  F0 B0 F1 B1 F2 B2 .
    """
    require_integer(ranks, "ranks")
    require_integer(microbatches, "microbatches")
    forward = [Action("F", i) for i in range(microbatches)]
    backward = [Action("B", i) for i in range(microbatches)]
    actions = [_alternate(forward, backward, ranks - rank - 1) for rank in range(ranks)]
    return Schedule("1F1B", microbatches, 1, tuple(actions))


def interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B: v chunks per rank shorten the bubble v times, for v times the messages.

    Chunk c of rank r is stage c·p + r. A rank takes p microbatches through a chunk, then through
    its next one. Before it alternates, it does 2(p − r − 1) + (v − 1)p forward passes of one chunk.

    Example:

        >>> from course_pkg.acceleration.parallel.timeline import simulate
        >>> print(simulate(interleaved(2, 2, 2), {"F": 1, "B": 1}).chart())
        rank 0  F0   F1   F0.1 F1.1 .    B0.1 .    B1.1 B0   B1
        rank 1  .    F0   F1   F0.1 B0.1 F1.1 B1.1 B0   B1   .
    """
    require_integer(ranks, "ranks")
    require_integer(microbatches, "microbatches")
    require_integer(chunks, "chunks")
    if microbatches % ranks:
        above = microbatches + ranks - microbatches % ranks
        below = above - ranks
        fitting = f"{below} or {above}" if below else str(above)
        raise ValueError(
            f"an interleaved schedule takes microbatches in groups of {ranks}, one per rank, so "
            f"{microbatches} can't be divided: use {fitting} microbatches, or 1F1B"
        )
    rounds = range(0, microbatches, ranks)
    order = [(first + i, c) for first in rounds for c in range(chunks) for i in range(ranks)]
    forward = [Action("F", i, c) for i, c in order]
    backward = [Action("B", i, chunks - 1 - c) for i, c in order]
    actions = []
    for rank in range(ranks):
        warm_up = 2 * (ranks - rank - 1) + (chunks - 1) * ranks
        actions.append(_alternate(forward, backward, warm_up))
    return Schedule("interleaved 1F1B", microbatches, chunks, tuple(actions))


def zero_bubble(ranks: int, microbatches: int) -> Schedule:
    """ZB-H1: 1F1B with halved backward passes; rank r is r gradients of weights behind.

    Nobody waits for the gradients of weights, so they fill the time in which other ranks wait for
    the gradients of inputs. Every rank holds at most p microbatches, as rank 0 does in 1F1B.

    Example:

        >>> from course_pkg.acceleration.parallel.timeline import simulate
        >>> print(simulate(zero_bubble(2, 3), {"F": 1, "I": 1, "W": 1}).chart())
        rank 0  F0 F1 .  I0 W0 F2 I1 W1 I2 W2
        rank 1  .  F0 I0 F1 I1 W0 F2 I2 W1 W2
    """
    actions = []
    for rank, one_by_one in enumerate(one_f_one_b(ranks, microbatches).actions):
        own = []
        for kind, i, _ in one_by_one:
            own.append(Action("F" if kind == "F" else "I", i))
            if kind == "B" and i >= rank:
                own.append(Action("W", i - rank))
        left = range(max(0, microbatches - rank), microbatches)
        own += [Action("W", i) for i in left]
        actions.append(tuple(own))
    return Schedule("ZB-H1", microbatches, 1, tuple(actions))


def _alternate(forward: list[Action], backward: list[Action], warm_up: int) -> tuple[Action, ...]:
    """The first `warm_up` forward passes, then forward and backward by turns, then what is left."""
    warm_up = min(warm_up, len(forward))
    actions = forward[:warm_up]
    for ahead, behind in zip(forward[warm_up:], backward, strict=False):
        actions += [ahead, behind]
    return tuple(actions + backward[len(forward) - warm_up :])


def check(schedule: Schedule) -> None:
    """Raise ValueError unless each pass is done once and every rank gets what it waits for."""
    pairs = [(i, c) for i in range(schedule.microbatches) for c in range(schedule.chunks)]
    for rank, actions in enumerate(schedule.actions):
        for action in actions:
            if action.kind not in KINDS or action[1:] not in pairs:
                raise ValueError(f"rank {rank} has {action}, which isn't of this schedule")
        for i, chunk in pairs:
            done = sorted(a.kind for a in actions if a[1:] == (i, chunk))
            if done not in (["B", "F"], ["F", "I", "W"]):
                raise ValueError(
                    f"rank {rank} does {', '.join(done) or 'nothing'} for microbatch {i}, chunk "
                    f"{chunk}: expected F and B, or F, I and W, once each"
                )
    for _ in in_order(schedule):
        pass


def in_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Ranks and actions in an order in which everything is there when it is needed.

    Raises:
        ValueError: there is none: a deadlock.
    """
    ready: set[Value] = set()
    position = [0] * schedule.ranks
    left = sum(len(actions) for actions in schedule.actions)
    while left:
        before = left
        for rank, actions in enumerate(schedule.actions):
            if position[rank] == len(actions):
                continue
            action = actions[position[rank]]
            if ready.issuperset(needs(schedule, rank, action)):
                yield rank, action
                ready.update(gives(schedule, rank, action))
                position[rank] += 1
                left -= 1
        if left == before:
            stuck = [
                f"rank {rank} before {actions[position[rank]]}"
                for rank, actions in enumerate(schedule.actions)
                if position[rank] < len(actions)
            ]
            raise ValueError(
                f"deadlock: {', '.join(stuck)} wait for passes that nobody does before"
            )


def needs(schedule: Schedule, rank: int, action: Action) -> list[Value]:
    """The values that an action reads."""
    kind, i, chunk = action
    stage = chunk * schedule.ranks + rank
    if kind == "F":
        return [Value("activation", stage - 1, i)] if stage else []
    if kind == "W":
        return [Value("gradient", stage, i)]
    own = Value("activation", stage, i)
    last = stage == schedule.stages - 1
    return [own] if last else [own, Value("gradient", stage + 1, i)]


def gives(schedule: Schedule, rank: int, action: Action) -> list[Value]:
    """The value that an action computes; W only adds to the gradients of its rank."""
    kind, i, chunk = action
    stage = chunk * schedule.ranks + rank
    if kind == "W":
        return []
    return [Value("activation" if kind == "F" else "gradient", stage, i)]


def program(schedule: Schedule) -> list[list[Action | Send | Receive]]:
    """The steps of each rank: its actions with their messages.

    Both ends of a message come in the same order relative to all other messages, as if all ranks
    were one. So no rank waits for a message that is stuck behind another one.
    """
    steps: list[list[Action | Send | Receive]] = [[] for _ in schedule.actions]
    for rank, action in in_order(schedule):
        steps[rank].append(action)
        for value in gives(schedule, rank, action):
            reader = value.stage + (1 if value.kind == "activation" else -1)
            other = reader % schedule.ranks
            if 0 <= reader < schedule.stages and other != rank:
                steps[rank].append(Send(value, other))
                steps[other].append(Receive(value, rank))
    return steps
