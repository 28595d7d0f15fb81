"""Swap space: blocks in the host's memory, where preempted sequences wait with what they computed.

Swapping copies a sequence's blocks, there and back, instead of computing its tokens again.
Chapter: acceleration/paged-attention.
"""

from course_pkg.common.arguments import require_integer
from course_pkg.serving.block_manager import BlockManager, Copy
from course_pkg.serving.block_pool import Block, BlockPool, OutOfBlocksError
from course_pkg.serving.sequence import Sequence


class SwapSpace:
    """`blocks` blocks on the host, at least 0, numbered from 1, for a block manager's sequences.

    >>> manager = BlockManager(blocks=4, block_size=2)
    >>> space, sequence = SwapSpace(manager, 4), Sequence("a", [5, 6, 7])
    >>> manager.allocate(sequence)
    0
    >>> space.swap_out(sequence)
    [(1, 1), (2, 2)]
    >>> space.swap_in(sequence)  # block 1 still has its tokens: only block 2 is copied back
    [(2, 2)]
    """

    def __init__(self, manager: BlockManager, blocks: int):
        self.manager = manager
        self.pool = BlockPool(require_integer(blocks, "blocks", 0))
        self._held: dict[int | str, tuple[list[Block], int]] = {}  # blocks and stored tokens

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._held

    def has_room(self, sequence: Sequence) -> bool:
        """Whether the sequence's blocks fit."""
        return len(self.manager.table(sequence)) <= self.pool.num_free

    def swap_out(self, sequence: Sequence) -> list[Copy]:
        """Free the sequence's blocks; returns (block, host block), to be copied before all else.

        Raises ValueError if the sequence has no blocks, OutOfBlocksError if they don't fit.
        """
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

        What the prefix cache still has is not copied. Raises ValueError if the sequence is not
        here, OutOfBlocksError if the manager has too few blocks; then nothing changes.
        """
        held, stored = self._get(sequence)
        hit = self.manager.allocate(sequence, stored) // self.manager.block_size
        table = self.manager.table(sequence)
        self.drop(sequence)
        return [(held[i].number, table[i]) for i in range(hit, len(held))]

    def drop(self, sequence: Sequence) -> None:
        """Forget the sequence. Raises ValueError if it is not here."""
        held, _ = self._get(sequence)
        del self._held[sequence.id]
        for block in held:
            self.pool.release(block)

    def _get(self, sequence: Sequence) -> tuple[list[Block], int]:
        if sequence not in self:
            raise ValueError(f"sequence {sequence.id!r} is not swapped out")
        return self._held[sequence.id]
