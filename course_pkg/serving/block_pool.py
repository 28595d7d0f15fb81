"""A pool of blocks: which are free, how many sequences use each, and what a cached block holds.

A free block may still be cached: it keeps the keys and values of known tokens until it is taken for
others. So the free list is also the list of what to evict, least recently used first.
"""

import hashlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free."""


@dataclass(frozen=True, eq=False, slots=True)
class Content:
    """What a full block holds: its tokens, after the content of the block before it.

    Before the first block stands a root without a parent, whose `tokens` are the cache key and the
    salt, so that blocks match only under the same ones.
    """

    hash: bytes
    parent: "Content | None"
    tokens: tuple

    def same(self, other: "Content") -> bool:
        """Whether both hold equal tokens after equal ones; compared up to a shared parent."""
        mine = self
        others = other
        while mine is not others:
            if mine is None or others is None or mine.tokens != others.tokens:
                return False
            mine = mine.parent
            others = others.parent
        return True


@dataclass(eq=False, slots=True)
class Block:
    """One block: its number, how many tables use it, and its content if the cache can find it."""

    number: int
    users: int = 0
    content: Content | None = None


def block_hash(parent: bytes, tokens: list[int] | tuple[int, ...]) -> bytes:
    """The SHA-256 hash of a full block: of its token ids, and of all before it through `parent`.

    Keys and values depend on all earlier tokens, so equal tokens after different ones need
    different hashes. Python's own `hash` has only 64 bits, and hash(-1) == hash(-2).
    """
    return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()


class BlockPool:
    """Blocks 1 … `blocks`; 0 is left for padding."""

    def __init__(self, blocks: int):
        self.blocks = [Block(number) for number in range(1, blocks + 1)]
        self._free = OrderedDict((block.number, block) for block in self.blocks)
        self._cached: dict[bytes, Block] = {}

    @property
    def num_free(self) -> int:
        """How many blocks have no user; some of them may be cached."""
        return len(self._free)

    def take(self) -> Block:
        """A free block for one user: an empty one, or else the least recently used cached one."""
        if not self._free:
            raise OutOfBlocksError(f"all {len(self.blocks)} blocks are in use")
        _, block = self._free.popitem(last=False)
        self._forget(block)
        block.users = 1
        return block

    def share(self, block: Block) -> None:
        """Count one more user; a cached free block leaves the free list."""
        self._free.pop(block.number, None)
        block.users += 1

    def release(self, block: Block) -> None:
        """Count one user fewer. The last one frees the block, and its content stays cached."""
        if block.users == 0:
            raise RuntimeError(f"block {block.number} is freed twice")
        block.users -= 1
        if block.users == 0:
            self._free[block.number] = block
            # An empty block is taken first, a cached one after those that were freed before it.
            self._free.move_to_end(block.number, last=block.content is not None)

    def find(self, content: Content) -> Block | None:
        """The cached block of this content. The hash finds it; the whole prefix is compared."""
        block = self._cached.get(content.hash)
        return block if block is not None and block.content.same(content) else None

    def remember(self, block: Block, content: Content) -> None:
        """Make a full block findable, unless another block has the hash already."""
        if content.hash not in self._cached:
            block.content = content
            self._cached[content.hash] = block

    def forget_all(self) -> None:
        """Empty the cache: nothing is found until it is computed again."""
        for block in self.blocks:
            self._forget(block)

    def _forget(self, block: Block) -> None:
        if block.content is not None:
            del self._cached[block.content.hash]
            block.content = None
