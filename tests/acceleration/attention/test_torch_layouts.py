"""torch's fused attention, chosen by the CPU's instructions: tiny sizes, any layout."""

import itertools
from types import SimpleNamespace

import torch

from course_pkg.lm.decoder import causal_attend
from tests.layouts import filled_memory, layouts


def test_a_query_that_wants_one_key_gets_exactly_its_value():
    """Scores differ by more than 1,000: the weight of one key is exactly 1, of the others 0."""
    attend = causal_attend(SimpleNamespace(window=lambda layer: None))
    generator = torch.Generator().manual_seed(0)
    wrong = []
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    sizes = itertools.product(dtypes, (1, 2, 3), (1, 2, 3), (50.0, -50.0))
    for dtype, tokens, width, number in sizes:
        query = torch.full((tokens, width), number, dtype=dtype)
        key = 50.0 * torch.arange(tokens).to(dtype)[:, None].repeat(1, width)
        value = torch.randint(-9, 10, (tokens, width), generator=generator).to(dtype)
        tensors = zip(layouts(query), layouts(query).values(), layouts(value).values(), strict=True)
        for name, q, v in tensors:
            k = key if name == "one row, expanded" else layouts(key)[name]
            # Of the keys that it sees, a query wants the last, its own, or the first.
            expected = v if number > 0 else v[:1].expand(tokens, width)
            with filled_memory():
                # (1, 2 heads, tokens, width); both heads share the keys and values
                heads = q.expand(1, 2, tokens, width)
                output = attend(0, heads, k[None, None], v[None, None])
            if not torch.equal(output, expected.expand_as(output)):
                wrong.append((dtype, tokens, width, number, name))
    assert wrong == []
