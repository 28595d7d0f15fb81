"""What attention costs: operations, numbers moved and memory, by formula.

The plain program reads the inputs of every operation from slow memory and writes the result there;
a tiled one moves blocks of the inputs and outputs only.
"""

from dataclasses import dataclass

from course_pkg.acceleration.attention.masks import tile_state
from course_pkg.common.arguments import require_integer


@dataclass(frozen=True)
class Cost:
    """Counts of one attention call, over all heads and sequences."""

    operations: int  # multiplications and additions of the matrix products
    exponentials: int  # calls of exp for scores
    loaded: int  # numbers read from slow memory
    stored: int  # and written to it
    extra: int  # numbers in slow memory besides inputs and results

    @property
    def moved(self) -> int:
        """Numbers read and written; the paper calls this HBM accesses."""
        return self.loaded + self.stored

    def intensity(self, bytes_per_number: int) -> float:
        """Operations per byte moved, which a roofline compares with the machine's ratio."""
        return self.operations / (self.moved * bytes_per_number)


def plain_cost(
    queries: int,
    keys: int,
    head_dim: int,
    *,
    batch: int = 1,
    heads: int = 1,
    kv_heads: int | None = None,
    backward: bool = False,
) -> Cost:
    """The cost of plain attention, which computes the whole matrix whatever the mask.

    Forward, the scores S and the probabilities P are written and read once each; backward, P is
    read twice, and dP and dS are written and read.

    Source: FlashAttention (Dao et al. 2022), algorithms 0 and 3.
    """
    kv_heads = _check(queries, keys, head_dim, batch, heads, kv_heads)
    matrix = batch * heads * queries * keys
    q = batch * heads * queries * head_dim
    k = batch * kv_heads * keys * head_dim
    if not backward:
        # S = QKᵀ, P = softmax(S), O = PV
        loaded = (q + k) + matrix + (matrix + k)
        stored = matrix + matrix + q
        return Cost(4 * matrix * head_dim, matrix, loaded, stored, 2 * matrix)
    # dV = Pᵀ dO, dP = dO Vᵀ, dS = P ∘ (dP − rowsum(P ∘ dP)), dQ = dS K, dK = dSᵀ Q
    loaded = (matrix + q) + (q + k) + 2 * matrix + (matrix + k) + (matrix + q)
    stored = k + matrix + matrix + q + k
    return Cost(8 * matrix * head_dim, 0, loaded, stored, 3 * matrix)


def flash_cost(
    queries: int,
    keys: int,
    head_dim: int,
    *,
    block_queries: int,
    block_keys: int,
    batch: int = 1,
    heads: int = 1,
    kv_heads: int | None = None,
    causal: bool = False,
    window: int | None = None,
    backward: bool = False,
) -> Cost:
    """The cost of `flash.flash_attention`; fully masked tiles are not counted.

    Forward, a block of queries is loaded once, and for it every block of keys and values that it
    sees; backward, it is the other way round. Extra memory: the log-sum-exp of each row, backward
    also delta.

    Source: FlashAttention-2 (Dao 2023), algorithms 1 and 2.
    """
    kv_heads = _check(queries, keys, head_dim, batch, heads, kv_heads)
    require_integer(block_queries, "block_queries")
    require_integer(block_keys, "block_keys")
    pairs = rows_read = columns_read = 0
    for i0 in range(0, queries, block_queries):
        i1 = min(i0 + block_queries, queries)
        for j0 in range(0, keys, block_keys):
            j1 = min(j0 + block_keys, keys)
            if tile_state(i0, i1, j0, j1, keys - queries, causal, window) != "skip":
                pairs += (i1 - i0) * (j1 - j0)
                rows_read += i1 - i0
                columns_read += j1 - j0
    pairs *= batch * heads
    rows = batch * heads * queries
    q = rows * head_dim
    k = batch * kv_heads * keys * head_dim
    if not backward:
        loaded = q + 2 * columns_read * batch * kv_heads * head_dim
        return Cost(4 * pairs * head_dim, pairs, loaded, q + rows, rows)
    rows_read *= batch * heads
    # delta from O and dO; then per tile Q, dO and dQ, and two numbers for each row
    loaded = 2 * q + 2 * k + rows_read * (3 * head_dim + 2)
    stored = rows + 2 * k + rows_read * head_dim
    return Cost(10 * pairs * head_dim, pairs, loaded, stored, 2 * rows)


def blocks_for(fast_memory: int, head_dim: int) -> tuple[int, int]:
    """Block sizes (queries, keys) for a fast memory of `fast_memory` numbers, by the paper's rule.

    The tile of scores takes about a quarter of the memory. Without a mask, the forward pass loads 8
    · queries · keys · head_dim² / fast_memory numbers of keys and values: the paper's Θ(N²d²/M).

    Source: FlashAttention (Dao et al. 2022), algorithm 1 and theorem 2.
    """
    if head_dim < 1 or fast_memory < 4 * head_dim:
        raise ValueError(
            f"fast_memory is {fast_memory} numbers and head_dim {head_dim}: "
            "it must hold at least 4 rows of head_dim numbers"
        )
    block_queries = -(-fast_memory // (4 * head_dim))
    return block_queries, min(block_queries, head_dim)


def _check(
    queries: int, keys: int, head_dim: int, batch: int, heads: int, kv_heads: int | None
) -> int:
    """The number of key heads, if the sizes fit."""
    kv_heads = heads if kv_heads is None else kv_heads
    if min(queries, keys, batch) < 0 or min(head_dim, heads, kv_heads) < 1 or heads % kv_heads:
        raise ValueError(
            f"queries={queries}, keys={keys}, batch={batch}, head_dim={head_dim}, heads={heads}, "
            f"kv_heads={kv_heads}: give numbers of tokens of at least 0, the others at least 1, "
            "and heads a multiple of kv_heads"
        )
    return kv_heads
