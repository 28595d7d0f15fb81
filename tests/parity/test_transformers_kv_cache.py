"""Greedy generation with every cache gives the tokens of transformers' `generate`."""

from itertools import product

import pytest
import torch

from course_pkg.serving.kv_cache import (
    ContiguousCache,
    SlidingWindowCache,
    StaticCache,
    generate,
    recompute,
)

from .decoder_models import left_mask, pair, tokens

MODELS = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
}
CACHES = {
    "contiguous": ContiguousCache,
    "static": lambda config, **options: StaticCache(config, 40, **options),
    "sliding": SlidingWindowCache,
}


def theirs_generate(model, ids, new_tokens, mask):
    """The new tokens of transformers' greedy search."""
    settings = {"do_sample": False, "use_cache": True, "pad_token_id": 0, "eos_token_id": None}
    out = model.generate(ids, attention_mask=mask.long(), max_new_tokens=new_tokens, **settings)
    return out[:, ids.shape[1] :].tolist()


# A Llama has no window to slide.
COMBINATIONS = sorted(set(product(MODELS, CACHES)) - {("llama", "sliding")})


@pytest.mark.parametrize(("family", "cache"), COMBINATIONS)
@pytest.mark.parametrize("padded", [False, True])
def test_tokens_are_those_of_transformers(family, cache, padded):
    ours, theirs = pair(family, **MODELS[family])
    ids = tokens(2, 10)
    mask = left_mask(10, 4 if padded else 10, length=10)
    made = CACHES[cache](ours.config, key_mask=mask if padded else None)
    result = generate(ours, ids, 20, made).tolist()
    assert result == theirs_generate(theirs, ids, 20, mask)
    assert all(len(set(row)) > 4 for row in result)


def test_dynamic_scaling_makes_a_cache_differ_from_recomputing_also_in_transformers():
    # Beyond 64 tokens, each step has other frequencies, but cached keys keep their old rotation.
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
    ours, theirs = pair("llama", rope_parameters=rope)
    ids = tokens(1, 60)
    mask = torch.ones(1, 60)
    cached = generate(ours, ids, 30, ContiguousCache(ours.config)).tolist()
    assert cached == theirs_generate(theirs, ids, 30, mask)
    assert cached != recompute(ours, ids, 30).tolist()
    assert cached[0][:4] == recompute(ours, ids, 4).tolist()[0]
