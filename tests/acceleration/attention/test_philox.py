"""Philox: the published test vectors, the rate of dropout, and independence of the tiling."""

import pytest
import torch

from course_pkg.acceleration.attention.philox import keep_mask, philox4x32

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # kat_vectors of the authors' library Random123, "philox4x32 10"
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES,) * 4, (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_the_words_are_those_of_the_authors_library(counter, key, words):
    drawn = philox4x32(tuple(torch.tensor(c) for c in counter), key)
    assert " ".join(f"{word.item():08x}" for word in drawn) == words


def grid(heads: int, queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    head = torch.arange(heads)[:, None, None]
    return head, torch.arange(queries)[:, None], torch.arange(keys)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_the_dropped_share_is_p(p):
    keep = keep_mask(3, *grid(4, 100, 100), p)
    # 40,000 draws: the standard deviation of the share is at most 0.0025.
    assert (~keep).double().mean().item() == pytest.approx(p, abs=0.01 if p else 0)


def test_seeds_heads_queries_and_keys_all_change_the_mask():
    keep = keep_mask(0, *grid(2, 64, 64), 0.5)
    other = keep_mask(1, *grid(2, 64, 64), 0.5)
    high = keep_mask(2**32, *grid(2, 64, 64), 0.5)
    pairs = [
        (keep[0], keep[1]),
        (keep[0, 0], keep[0, 1]),
        (keep[0, :, 0], keep[0, :, 1]),
        (keep[0], keep[0].T),
        (keep, other),
        (keep, high),
    ]
    # Of 64 to 8,192 independent fair bits, about half are equal.
    assert all(0.2 < (a == b).double().mean() < 0.8 for a, b in pairs)


@pytest.mark.parametrize(("seed", "p"), [(0, 1.0), (0, float("nan")), (-1, 0.5), (2**64, 0.5)])
def test_a_seed_or_a_probability_out_of_range_is_refused(seed, p):
    with pytest.raises(ValueError, match="must be at least 0 and below"):
        keep_mask(seed, *grid(1, 1, 1), p)
