"""The cost formulas: by hand, against what the tiled code reports, and against the paper's law."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.acceleration.attention.flash import flash_attention
from course_pkg.acceleration.attention.io_complexity import Cost, blocks_for, flash_cost, plain_cost

from .examples import tensors


def test_plain_attention_of_two_queries_and_three_keys_by_hand():
    # Numbers: Q 2·4 = 8, K and V 3·4 = 12 each, S and P 2·3 = 6 each, O 8.
    # Loaded: Q, K (20), S (6), P, V (18) = 44. Stored: S, P, O = 6 + 6 + 8 = 20.
    # Operations: each of the 6 scores and their use in PV is 4 multiplications and additions.
    assert plain_cost(2, 3, 4) == Cost(6 * 16, 6, 44, 20, 12)
    # Backward loads P, dO (14), dO, V (20), P, dP (12), dS, K (18), dS, Q (14) = 78,
    # and stores dV, dP, dS, dQ, dK = 12 + 6 + 6 + 8 + 12 = 44.
    assert plain_cost(2, 3, 4, backward=True) == Cost(6 * 32, 0, 78, 44, 18)


def test_tiled_attention_of_two_queries_and_three_keys_by_hand():
    # Blocks of 1 query and 2 keys; causal: query 0 sees keys 0 and 1, query 1 all three.
    # Query 0 computes block {0, 1}, query 1 blocks {0, 1} and {2}: 2 + 2 + 1 = 5 pairs.
    # Loaded: Q (8), then keys and values of 5 tokens, 5·2·4 = 40. Stored: O (8) and 2 numbers lse.
    sizes = {"block_queries": 1, "block_keys": 2, "causal": True}
    assert flash_cost(2, 3, 4, **sizes) == Cost(5 * 16, 5, 48, 10, 2)
    # Backward loads O, dO (16), K, V (24), and for 3 tiles Q, dO, dQ and 2 numbers: 3·14 = 42;
    # it stores 2 numbers delta, dK, dV (24) and dQ for 3 tiles (12).
    assert flash_cost(2, 3, 4, **sizes, backward=True) == Cost(5 * 40, 5, 82, 38, 4)


@given(
    st.integers(1, 2),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.integers(0, 30),
    st.integers(0, 30),
    st.booleans(),
    st.none() | st.integers(1, 35),
    st.integers(1, 35),
    st.integers(1, 35),
)
@settings(max_examples=60)
def test_the_formula_gives_what_the_tiled_code_reports(
    batch, heads, queries, keys, causal, window, block_queries, block_keys
):
    steps = []
    options = {"causal": causal, "window": window}
    options |= {"block_queries": block_queries, "block_keys": block_keys}
    inputs = tensors(batch, *heads, queries, keys, head_dim=4)
    flash_attention(*inputs, watch=steps.append, **options).sum().backward()
    for phase in ("forward", "backward"):
        sizes = {"batch": batch, "heads": heads[0], "kv_heads": heads[1]}
        cost = flash_cost(queries, keys, 4, backward=phase == "backward", **sizes, **options)
        of_phase = [step for step in steps if step.phase == phase]
        assert sum(step.loaded for step in of_phase) == cost.loaded
        assert sum(step.stored for step in of_phase) == cost.stored
        pairs = sum(len(step.queries) * len(step.keys) for step in of_phase if step.kind == "tile")
        assert batch * heads[0] * pairs == cost.exponentials


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("fast_memory", [2**14, 2**16, 2**17])
def test_the_loads_of_keys_and_values_follow_the_papers_law(head_dim, fast_memory):
    tokens = 2**13
    block_queries, block_keys = blocks_for(fast_memory, head_dim)
    cost = flash_cost(tokens, tokens, head_dim, block_queries=block_queries, block_keys=block_keys)
    of_keys = cost.loaded - tokens * head_dim
    assert of_keys == 8 * tokens**2 * head_dim**2 / fast_memory  # all sizes are powers of two
    # The blocks of Q, O, K, V and the scores are about as large as the fast memory.
    held = 2 * (block_queries + block_keys) * head_dim + block_queries * block_keys
    assert fast_memory / 2 <= held <= 1.25 * fast_memory


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="heads a multiple of kv_heads"):
        plain_cost(4, 4, 8, heads=3, kv_heads=2)
    with pytest.raises(ValueError, match="numbers of tokens of at least 0"):
        flash_cost(-1, 4, 8, block_queries=1, block_keys=1)
    with pytest.raises(ValueError, match="block_queries must be an integer of at least 1, got 0"):
        flash_cost(4, 4, 8, block_queries=0, block_keys=1)
    with pytest.raises(ValueError, match="it must hold at least 4 rows of head_dim numbers"):
        blocks_for(100, 64)
