"""The block manager: which blocks hold the keys and values of each sequence. It holds no tensors.

Token t of a sequence is in slot t % block_size of block table[t // block_size]. A block gets its
hash when `append` makes room for its last token, which is before the engine computes it. So another
sequence can hit it in the same step: in each layer, the engine must write the keys and values of
all tokens of the step before it reads any.

Source: Kwon et al. (2023), "Efficient memory management for large language model serving with
PagedAttention", section 4.
"""

import hashlib
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.serving.block_pool import Block, BlockPool, Content, OutOfBlocksError, block_hash
from course_pkg.serving.sequence import Sequence

Copy = tuple[int, int]  # (source, target) block numbers


@dataclass(eq=False, slots=True)
class _Table:
    blocks: list[Block]
    stored: int  # tokens


class BlockManager:
    """Block tables over a pool of `blocks` blocks of `block_size` tokens, numbered from 1.

    Args:
        prefix_cache: find earlier sequences' full blocks by their hash.
        watermark: the share of the blocks that stays free when a sequence is admitted, so that the
            running ones can grow.

    Example:

        >>> manager = BlockManager(blocks=10, block_size=16)
        >>> first, second = Sequence("a", list(range(55))), Sequence("b", [*range(48), 7, 7])
        >>> manager.allocate(first), manager.table(first)  # no hit; four blocks
        (0, [1, 2, 3, 4])
        >>> manager.allocate(second), manager.table(second)  # 48 tokens are there already
        (48, [1, 2, 3, 5])
    """

    def __init__(
        self, blocks: int, block_size: int, *, prefix_cache: bool = True, watermark: float = 0.0
    ):
        self.pool = BlockPool(require_integer(blocks, "blocks"))
        self.block_size = require_integer(block_size, "block_size")
        self.prefix_cache = prefix_cache
        self.reserve = round(require_between(watermark, "watermark", 0, 1, closed=True) * blocks)
        self._tables: dict[int | str, _Table] = {}  # by the sequence's id
        # What the full blocks of a sequence hold, also while it waits.
        self._contents: WeakKeyDictionary[Sequence, list[Content]] = WeakKeyDictionary()

    def table(self, sequence: Sequence) -> list[int]:
        return [block.number for block in self._get(sequence).blocks]

    def slots(self, sequence: Sequence, start: int, count: int) -> list[int]:
        """Where the tokens start … start + count − 1 are: block number · block_size + offset."""
        table = self.table(sequence)
        size = self.block_size
        return [table[t // size] * size + t % size for t in range(start, start + count)]

    def stored(self, sequence: Sequence) -> int:
        """How many of the sequence's tokens have a slot."""
        table = self._tables.get(sequence.id)
        return table.stored if table else 0

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def empty_slots(self) -> int:
        """The waste: slots of used blocks that hold no token, all in tables' last blocks."""
        tables = [table for table in self._tables.values() if table.blocks]
        last = {t.blocks[-1]: len(t.blocks) * self.block_size - t.stored for t in tables}
        return sum(last.values())

    def can_allocate(self, sequence: Sequence, *, keep_reserve: bool = True) -> bool:
        """Whether all of the sequence's tokens fit; by default, the reserve must stay free."""
        free_after = self._free_after(self._hits(sequence), len(sequence.tokens))
        return free_after >= (self.reserve if keep_reserve else 0)

    def allocate(self, sequence: Sequence, upto: int | None = None) -> int:
        """Start a table with what the prefix cache has, then make room for the other tokens.

        Args:
            upto: make room for the first `upto` tokens only; `append` adds the others.

        Returns:
            how many tokens were hit. The last one never is, because the logits after it are needed.

        Raises:
            OutOfBlocksError: blocks are lacking; then nothing changes.
        """
        if sequence.id in self._tables:
            raise ValueError(f"sequence {sequence.id!r} has blocks already: free it first")
        hits = self._hits(sequence)
        hit_tokens = len(hits) * self.block_size
        upto = max(hit_tokens, len(sequence.tokens) if upto is None else upto)
        lacking = -self._free_after(hits, upto)
        if lacking > 0:
            raise OutOfBlocksError(
                f"{lacking} blocks are lacking for {upto} tokens of sequence {sequence.id!r}: "
                "ask can_allocate first, and wait until others are freed"
            )
        for block in hits:
            self.pool.share(block)
        self._tables[sequence.id] = _Table(hits, hit_tokens)
        self.append(sequence, upto - hit_tokens)
        return hit_tokens

    def can_append(self, sequence: Sequence, count: int) -> bool:
        return self._needed(self._get(sequence), count) <= self.pool.num_free

    def append(self, sequence: Sequence, count: int) -> Copy | None:
        """Make room for the next `count` of sequence.tokens; hash the blocks that become full.

        Returns:
            the copy to make before the tokens are written, if the last block is partly empty and
            shared.

        Raises:
            OutOfBlocksError: blocks are lacking; then nothing changes.
        """
        table = self._get(sequence)
        if not 0 <= count <= len(sequence.tokens) - table.stored:
            raise ValueError(
                f"sequence {sequence.id!r} has {len(sequence.tokens)} tokens and room for "
                f"{table.stored}, so it cannot append {count}: add tokens to it first"
            )
        needed = self._needed(table, count)
        if needed > self.pool.num_free:
            raise OutOfBlocksError(
                f"sequence {sequence.id!r} needs {needed} more blocks, and {self.pool.num_free} of "
                f"{len(self.pool.blocks)} are free: preempt another sequence, or wait"
            )
        copy = self._replace_last_block(table) if self._must_copy(table, count) else None
        table.blocks += [self.pool.take() for _ in range(self._new_blocks(table, count))]
        full_before = table.stored // self.block_size
        table.stored += count
        for index in range(full_before, table.stored // self.block_size):
            self._remember(sequence, index)
        return copy

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give the child, which begins with what the parent has stored, the parent's blocks too."""
        table = self._get(parent)
        first_tokens = parent.tokens[: table.stored]
        if child.id in self._tables or child.tokens[: table.stored] != first_tokens:
            raise ValueError(
                f"sequence {child.id!r} cannot be forked from {parent.id!r}: it must be new and "
                f"begin with the same {table.stored} tokens"
            )
        for block in table.blocks:
            self.pool.share(block)
        self._tables[child.id] = _Table(list(table.blocks), table.stored)
        self._contents[child] = list(self._contents.get(parent, ()))

    def free(self, sequence: Sequence) -> None:
        """Give the sequence's blocks back, the last one first, so that it is evicted first."""
        table = self._get(sequence)
        del self._tables[sequence.id]
        for block in reversed(table.blocks):
            self.pool.release(block)

    def forget_cache(self) -> None:
        """Empty the prefix cache, because a step failed or the weights changed."""
        self.pool.forget_all()

    def _get(self, sequence: Sequence) -> _Table:
        if sequence.id not in self._tables:
            raise ValueError(
                f"sequence {sequence.id!r} has no blocks: it was freed, or never allocated"
            )
        return self._tables[sequence.id]

    def _free_after(self, hits: list[Block], tokens: int) -> int:
        """How many blocks are free, less those that `tokens` tokens with these hits would take."""
        free = self.pool.num_free - sum(block.users == 0 for block in hits)
        return free - (self.blocks_for(tokens) - len(hits))

    def _new_blocks(self, table: _Table, count: int) -> int:
        return self.blocks_for(table.stored + count) - len(table.blocks)

    def _needed(self, table: _Table, count: int) -> int:
        """How many blocks the next `count` tokens take, with the copy of a shared one."""
        new = self._new_blocks(table, count)
        return new + 1 if self._must_copy(table, count) else new

    def _must_copy(self, table: _Table, count: int) -> bool:
        """Whether the next `count` tokens write into a last block that others use."""
        partly_empty = table.stored % self.block_size > 0
        return count > 0 and partly_empty and table.blocks[-1].users > 1

    def _replace_last_block(self, table: _Table) -> Copy:
        """Copy-on-write: a block of its own in place of the shared one. Returns the copy."""
        source = table.blocks[-1]
        target = self.pool.take()
        table.blocks[-1] = target
        self.pool.release(source)
        return source.number, target.number

    def _content(self, sequence: Sequence, index: int) -> Content:
        contents = self._contents.setdefault(sequence, [])
        size = self.block_size
        while len(contents) <= index:
            parent = contents[-1] if contents else _root(sequence)
            start = len(contents) * size
            tokens = tuple(sequence.tokens[start : start + size])
            contents.append(Content(block_hash(parent.hash, tokens), parent, tokens))
        return contents[index]

    def _find(self, sequence: Sequence, index: int) -> Block | None:
        """The cached block for a full block of the sequence.

        The sequence then has the block's own content, so that later comparisons end there.
        """
        block = self.pool.find(self._content(sequence, index))
        if block is not None:
            self._contents[sequence][index] = block.content
        return block

    def _remember(self, sequence: Sequence, index: int) -> None:
        """Make a block that has become full findable, unless another one has its content."""
        if self.prefix_cache and self._find(sequence, index) is None:
            block = self._tables[sequence.id].blocks[index]
            self.pool.remember(block, self._content(sequence, index))

    def _hits(self, sequence: Sequence) -> list[Block]:
        """The longest cached prefix, without the last token."""
        hits: list[Block] = []
        if self.prefix_cache and sequence.takes_hits:
            full = (len(sequence.tokens) - 1) // self.block_size
            for index in range(full):
                block = self._find(sequence, index)
                if block is None:
                    break
                hits.append(block)
        return hits


def _root(sequence: Sequence) -> Content:
    """The parent of a first block: all that must agree besides the tokens."""
    agreed = (sequence.cache_key, sequence.cache_salt)
    return Content(hashlib.sha256(repr(agreed).encode()).digest(), None, agreed)
