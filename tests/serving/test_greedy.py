"""Greedy generation: the most likely token, stops, and bad arguments."""

import pytest
import torch

from course_pkg.lm.decoder import Decoder
from course_pkg.lm.tiny import tiny_model
from course_pkg.serving.greedy import generate, recompute
from course_pkg.serving.kv_cache import ContiguousCache

IDS = torch.tensor([[0, 3], [0, 1]])


class Counter(torch.nn.Module):
    """A model whose next token is the last one plus 1; it attends to nothing."""

    config = Decoder.from_transformers(tiny_model()).config

    def forward(self, ids, positions, attend, last_only):
        heads = torch.zeros(ids.shape[0], 4, ids.shape[1], 16)
        for layer in range(self.config.layers):
            attend(layer, heads, heads[:, :2], heads[:, :2])
        return torch.nn.functional.one_hot(ids[:, -1:] + 1, 20).float()


def both(ids, new_tokens, **options):
    """What `generate` returns, which must be what `recompute` returns."""
    model = Counter()
    tokens = generate(model, ids, new_tokens, ContiguousCache(model.config), **options)
    assert torch.equal(tokens, recompute(model, ids, new_tokens, **options))
    return tokens.tolist()


def test_each_token_follows_the_one_before():
    assert both(IDS, 3) == [[4, 5, 6], [2, 3, 4]]


def test_a_row_that_ended_repeats_its_stop():
    assert both(IDS, 4, stop=[5]) == [[4, 5, 5, 5], [2, 3, 4, 5]]


def test_generation_ends_when_all_rows_have():
    assert both(IDS, 10, stop={6, 3}) == [[4, 5, 6], [2, 3, 3]]


def test_a_prompt_that_ends_in_a_stop_does_not_end_the_row():
    assert both(IDS, 2, stop=[3, 1]) == [[4, 5], [2, 3]]


@pytest.mark.parametrize(
    ("ids", "new_tokens"), [(IDS[0], 1), (IDS[:, :0], 1), (IDS, 0)], ids=["1-D", "empty", "none"]
)
def test_bad_arguments(ids, new_tokens):
    model = Counter()
    expected = r"expected \(batch, tokens\) with at least one token, and at least 1"
    with pytest.raises(ValueError, match=expected):
        generate(model, ids, new_tokens, ContiguousCache(model.config))
    with pytest.raises(ValueError, match=expected):
        recompute(model, ids, new_tokens)


def test_no_graph_is_kept():
    model = Decoder.from_transformers(tiny_model())
    cache = ContiguousCache(model.config)
    generate(model, IDS, 2, cache)
    assert not cache.layers[0].held[0].requires_grad
