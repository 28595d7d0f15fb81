"""The scheduler: which sequences the next step computes, and how many tokens of each. No tensors.

A step has a budget of tokens. Sequences that run come first, and each gets at least one token. All
sequences have one order: the first are admitted first, and the last running one is preempted when
blocks run out, to be computed again or swapped out to the host. None overtakes it while it waits,
so that nobody starves.

The engine calls, in turn, `schedule()`, which gives a step, and `update(step, tokens)`::

    1. copy the blocks of step.swap_out, step.swap_in and step.copies, in this order;
    2. compute all tokens of step.scheduled, also of sequences that are aborted meanwhile;
    3. choose a token for each of step.sampling; maybe `fork`; update.

Sources: Yu et al. (2022), "Orca"; Agrawal et al. (2024), "Sarathi-Serve"; vLLM V1.
"""

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from course_pkg.common.arguments import require_integer
from course_pkg.serving.block_manager import BlockManager, Copy
from course_pkg.serving.block_pool import Block, BlockPool, OutOfBlocksError
from course_pkg.serving.sequence import Sequence


class SwapSpace:
    """`blocks` blocks on the host, at least 0, numbered from 1, for a block manager's sequences."""

    def __init__(self, manager: BlockManager, blocks: int):
        self.manager = manager
        self.pool = BlockPool(require_integer(blocks, "blocks", 0))
        self._held: dict[int | str, tuple[list[Block], int]] = {}  # blocks and stored tokens

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._held

    def has_room(self, sequence: Sequence) -> bool:
        return len(self.manager.table(sequence)) <= self.pool.num_free

    def swap_out(self, sequence: Sequence) -> list[Copy]:
        """Free the sequence's blocks; returns (block, host block), to be copied before all else."""
        table = self.manager.table(sequence)
        if not self.has_room(sequence):
            raise OutOfBlocksError(
                f"sequence {sequence.id!r} has {len(table)} blocks, and {self.pool.num_free} of "
                f"{len(self.pool.blocks)} on the host are free: free it and compute it again"
            )
        held = [self.pool.take() for _ in table]
        self._held[sequence.id] = held, self.manager.stored(sequence)
        self.manager.free(sequence)
        return [(number, block.number) for number, block in zip(table, held, strict=True)]

    def swap_in(self, sequence: Sequence) -> list[Copy]:
        """Allocate the sequence again; returns (host block, block), copied before they are read.

        What the prefix cache still has is not copied. If blocks are lacking, nothing changes.
        """
        held, stored = self._get(sequence)
        hit = self.manager.allocate(sequence, stored) // self.manager.block_size
        table = self.manager.table(sequence)
        self.drop(sequence)
        return [(held[i].number, table[i]) for i in range(hit, len(held))]

    def drop(self, sequence: Sequence) -> None:
        held, _ = self._get(sequence)
        del self._held[sequence.id]
        for block in held:
            self.pool.release(block)

    def _get(self, sequence: Sequence) -> tuple[list[Block], int]:
        if sequence not in self:
            raise ValueError(f"sequence {sequence.id!r} is not swapped out")
        return self._held[sequence.id]


@dataclass
class Step:
    """What the engine does, in this order: swap out, swap in, copy, compute all that is scheduled.

    Attributes:
        scheduled: which tokens of each sequence to compute.
        sampling: the sequences whose tokens are all computed then, so that each gets a next token.
    """

    scheduled: dict[Sequence, range] = field(default_factory=dict)
    sampling: list[Sequence] = field(default_factory=list)
    swap_out: list[Copy] = field(default_factory=list)  # (block, host block)
    swap_in: list[Copy] = field(default_factory=list)  # (host block, block)
    copies: list[Copy] = field(default_factory=list)  # (block, block)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.scheduled.values()))


class Scheduler:
    """Continuous batching over a block manager.

    Args:
        token_budget: the tokens of a step, at least max_sequences.
        swap_blocks: blocks on the host, for preempted sequences; those that don't fit are
            recomputed.
        aging: a sequence of priority p stands in the order as if it had come p · aging steps later.

    Example:

        >>> scheduler = Scheduler(BlockManager(10, 4), token_budget=6, max_sequences=4)
        >>> scheduler.add(Sequence("a", [1] * 4))
        >>> scheduler.add(Sequence("b", [2] * 5))
        >>> step = scheduler.schedule()
        >>> {sequence.id: tokens for sequence, tokens in step.scheduled.items()}
        {'a': range(0, 4), 'b': range(0, 2)}
    """

    def __init__(
        self,
        block_manager: BlockManager,
        token_budget: int,
        max_sequences: int,
        *,
        swap_blocks: int = 0,
        aging: int = 100,
    ):
        self.block_manager = block_manager
        self.swap_space = SwapSpace(block_manager, swap_blocks)
        self.max_sequences = require_integer(max_sequences, "max_sequences")
        self.token_budget = require_integer(token_budget, "token_budget", max_sequences)
        self.aging = require_integer(aging, "aging", 0)
        self.waiting: list[Sequence] = []  # both in order
        self.running: list[Sequence] = []
        self.steps = 0
        self.preemptions = 0  # in all steps so far
        self._added = 0
        self._alive: dict[int | str, Sequence] = {}  # by id
        self._places: dict[int | str, tuple[int, int]] = {}  # by id
        self._open: Step | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._alive)

    def place(self, sequence: Sequence) -> tuple[int, int]:
        """Where a sequence that waits or runs stands in the order; smaller is first."""
        return self._places[sequence.id]

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError if its id is in use, or it could outgrow the pool."""
        # The last new token is not stored, because nothing is computed from it.
        manager = self.block_manager
        most = manager.blocks_for(len(sequence.prompt) + sequence.max_new_tokens - 1)
        if most > len(manager.pool.blocks):
            raise ValueError(
                f"sequence {sequence.id!r} has a prompt of {len(sequence.prompt)} tokens and "
                f"max_new_tokens {sequence.max_new_tokens}: that is up to {most} blocks of "
                f"{manager.block_size}, and there are {len(manager.pool.blocks)}; shorten it, or "
                "give the engine more blocks"
            )
        self._enter(sequence, self.steps + sequence.priority * self.aging)
        insort(self.waiting, sequence, key=self.place)

    def abort(self, id: int | str) -> bool:
        """End a sequence and free its blocks; false if it has ended already or never was."""
        sequence = self._alive.get(id)
        if sequence is not None:
            sequence.finish_reason = "abort"
            self._leave(sequence)
        return sequence is not None

    def schedule(self) -> Step:
        """The next step; it is empty without work."""
        if self._open is not None:
            raise RuntimeError("the last step is not finished: call update(step, tokens) first")
        self.steps += 1
        step = Step()
        budget = self.token_budget
        done = 0
        while done < len(self.running):
            sequence = self.running[done]
            behind = len(self.running) - done - 1  # each of them gets at least one token
            count = min(self._uncomputed(sequence), budget - behind)
            if self._make_room(sequence, count, step):
                self._schedule(sequence, count, step)
                budget -= count
                done += 1
        # A step that preempts admits nobody: blocks are scarce.
        while budget and not step.preempted and (sequence := self._admit(step)):
            count = min(self._uncomputed(sequence), budget)
            self._schedule(sequence, count, step)
            budget -= count
        self._open = step
        return step

    def update(self, step: Step, tokens: Mapping[int | str, int]) -> list[Sequence]:
        """Append the new token of each sequence that sampled; returns those that are finished.

        Args:
            tokens: by id; sequences aborted during the step need none.
        """
        if step is not self._open:
            raise ValueError("this is not the step that schedule() returned last")
        alive = [sequence for sequence in step.sampling if sequence.finish_reason is None]
        needed = {sequence.id for sequence in alive}
        if not needed <= tokens.keys() <= {sequence.id for sequence in step.sampling}:
            raise ValueError(
                f"tokens for {sorted(tokens)}: expected one for each sequence that samples in "
                f"this step and was not aborted, {sorted(needed)}"
            )
        self._open = None
        finished = [sequence for sequence in alive if sequence.add(tokens[sequence.id])]
        for sequence in finished:
            self._leave(sequence)
        return finished

    def fork(self, parent: Sequence, id: int | str, token: int) -> Sequence:
        """A sequence that has all of the parent's tokens and then `token`; it shares its blocks.

        Call it after a step in which the parent samples, and before `update`. If max_sequences run,
        the child waits, and hits the full blocks later.
        """
        sampling = self._open.sampling if self._open else []
        if parent not in sampling or parent.finish_reason is not None:
            raise ValueError(
                f"sequence {parent.id!r} cannot be forked now: fork it after a step in which it "
                "samples and before update()"
            )
        child = parent.copy(id)
        self._enter(child, self.place(parent)[0])
        if len(self.running) < self.max_sequences:
            self.block_manager.fork(parent, child)
            insort(self.running, child, key=self.place)
        else:
            insort(self.waiting, child, key=self.place)
        if child.add(token):
            self._leave(child)
        return child

    def fail(self) -> list[Sequence]:
        """End all running sequences, because the step could not be computed; returns them.

        What the step was to write may be missing, so the prefix cache is emptied, and what the step
        swapped out is computed again.
        """
        failed = list(self.running)
        for sequence in failed:
            self.abort(sequence.id)
        for sequence in self._open.preempted if self._open else []:
            if sequence in self.swap_space:
                self.swap_space.drop(sequence)
        self.block_manager.forget_cache()
        self._open = None
        return failed

    def _uncomputed(self, sequence: Sequence) -> int:
        return len(sequence.tokens) - self.block_manager.stored(sequence)

    def _make_room(self, sequence: Sequence, count: int, step: Step) -> bool:
        """Preempt from the end of the order until `count` tokens fit; false if it was itself."""
        while not self.block_manager.can_append(sequence, count):
            last = self.running.pop()
            if self.swap_space.has_room(last):
                step.swap_out += self.swap_space.swap_out(last)
            else:
                self.block_manager.free(last)
            last.preemptions += 1
            self.preemptions += 1
            step.preempted.append(last)
            insort(self.waiting, last, key=self.place)
            if last is sequence:
                return False
        return True

    def _schedule(self, sequence: Sequence, count: int, step: Step) -> None:
        start = self.block_manager.stored(sequence)
        copy = self.block_manager.append(sequence, count)
        if copy is not None:
            step.copies.append(copy)
        step.scheduled[sequence] = range(start, start + count)
        if start + count == len(sequence.tokens):
            step.sampling.append(sequence)

    def _admit(self, step: Step) -> Sequence | None:
        """Move the first waiting sequence to the running ones, if it fits."""
        if not self.waiting or len(self.running) == self.max_sequences:
            return None
        # The reserve is for those that run; without them, it would only keep this one waiting.
        if not self.block_manager.can_allocate(self.waiting[0], keep_reserve=bool(self.running)):
            return None
        sequence = self.waiting.pop(0)
        if sequence in self.swap_space:
            step.swap_in += self.swap_space.swap_in(sequence)
        else:
            hit = self.block_manager.allocate(sequence, 0)
            if not sequence.preemptions:
                sequence.hit_tokens = hit
        insort(self.running, sequence, key=self.place)
        return sequence

    def _enter(self, sequence: Sequence, step: int) -> None:
        if sequence.id in self._alive or sequence.finish_reason is not None:
            raise ValueError(
                f"sequence {sequence.id!r} is running, waiting or finished: give a new one a new id"
            )
        self._alive[sequence.id] = sequence
        self._added += 1
        self._places[sequence.id] = (step, self._added)

    def _leave(self, sequence: Sequence) -> None:
        del self._alive[sequence.id], self._places[sequence.id]
        if sequence in self.running:
            self.running.remove(sequence)
            self.block_manager.free(sequence)
        else:
            self.waiting.remove(sequence)
            if sequence in self.swap_space:
                self.swap_space.drop(sequence)
