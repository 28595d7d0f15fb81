"""Visibility: by its definition, key by key, and the state of a tile against the whole mask."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.acceleration.attention.masks import tile_state, visible

NUMBERS = st.integers(0, 9)
WINDOWS = st.none() | st.integers(1, 12)


@given(NUMBERS, NUMBERS, st.booleans(), WINDOWS)
def test_visible_follows_its_definition(queries, keys, causal, window):
    seen = visible(queries, keys, causal=causal, window=window)
    assert seen.shape == (1, 1, queries, keys) and seen.dtype == torch.bool
    for i in range(queries):
        for j in range(keys):
            position = i + keys - queries
            expected = (not causal or j <= position) and (window is None or j > position - window)
            assert seen[0, 0, i, j] == expected


def test_a_key_mask_hides_a_key_from_all_queries_of_its_sequence():
    key_mask = torch.tensor([[True, False, True], [False, True, True]])
    seen = visible(2, 3, causal=True, key_mask=key_mask)
    assert seen.shape == (2, 1, 2, 3)
    assert seen[0, 0].int().tolist() == [[1, 0, 0], [1, 0, 1]]
    assert seen[1, 0].int().tolist() == [[0, 1, 0], [0, 1, 1]]


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(-9, 9), st.booleans(), WINDOWS)
def test_a_tiles_state_says_whether_none_all_or_some_of_it_is_visible(
    i0, height, j0, width, offset, causal, window
):
    queries = 20
    keys = 20 + offset
    j0 = min(j0, keys)
    width = min(width, keys - min(j0, keys))
    part = visible(queries, keys, causal=causal, window=window)[
        0, 0, i0 : i0 + height, j0 : j0 + width
    ]
    expected = "skip" if not part.any() else "full" if part.all() else "partial"
    assert tile_state(i0, i0 + height, j0, j0 + width, offset, causal, window) == expected
