"""Sequences of tokens that begin alike, merged into a tree in which each token occurs once.

A decoder can read the whole tree in one pass if each token sees itself and its ancestors only, and
if its position is its depth. Parts of the sequences may be in a cache already: `cached` has the
tokens of that path. Sources: SpecInfer (Miao et al. 2023), section 4, and Medusa (Cai et al. 2024).
"""

from collections.abc import Sequence
from itertools import takewhile
from operator import eq


class TokenTree:
    """A tree of new tokens below a path of cached ones; parents come before children.

    parents: the node before each, or −1 if that is a cached token, or nothing. seen: how many
    tokens of the cached path each node sees. positions: each node's place in its sequence.

    >>> tree = TokenTree(cached=[7])
    >>> tree.add([7, 1, 2], new_from=1), tree.add([7, 1, 3], new_from=1), tree.parents
    ([0, 1], [0, 2], [-1, 0, 0])
    """

    def __init__(self, cached: Sequence[int] = ()):
        self.cached = cached
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.seen: list[int] = []
        self.positions: list[int] = []
        self._children: dict[tuple[int, int, int], int] = {}  # (seen, parent, token) → node

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, sequence: Sequence[int], new_from: int) -> list[int]:
        """Add a sequence's tokens that the cache lacks, or from new_from on; return their nodes."""
        seen = self._cached_part(sequence, new_from)
        parent = -1
        nodes = []
        for position in range(seen, len(sequence)):
            key = (seen, parent, sequence[position])
            if key not in self._children:
                self._children[key] = len(self.tokens)
                self.tokens.append(sequence[position])
                self.parents.append(parent)
                self.seen.append(seen)
                self.positions.append(position)
            parent = self._children[key]
            nodes.append(parent)
        return nodes

    def missing(self, sequence: Sequence[int], new_from: int) -> int:
        seen = self._cached_part(sequence, new_from)
        parent = -1
        for position in range(seen, len(sequence)):
            parent = self._children.get((seen, parent, sequence[position]), -1)
            if parent == -1:
                return len(sequence) - position
        return 0

    def _cached_part(self, sequence: Sequence[int], new_from: int) -> int:
        return min(shared_length(self.cached, sequence), new_from)


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences have in common before they differ."""
    return sum(1 for _ in takewhile(bool, map(eq, first, second)))
