"""`paged-attention`, in the student's process: how answers are called, and what they change."""

import hashlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_pkg.grading.questions.calling import require_type

if TYPE_CHECKING:  # imported where answers compute with tensors: two questions do
    from torch import Tensor

POOL = {"block_size": int, "free": list, "users": list, "tables": dict, "tokens": dict}
Values = dict[str, Any]


def on_pool(answer: Any, inputs: Values) -> Values:
    """What an answer returns for a pool and the other inputs, and the pool afterwards."""
    pool = SimpleNamespace(**{name: inputs[name] for name in POOL})
    returned = answer(pool, *(value for name, value in inputs.items() if name not in POOL))
    for name, kind in POOL.items():
        require_type(getattr(pool, name, None), kind, f"a {kind.__name__} in pool.{name}")
    return described(returned, vars(pool))


def described(returned: Any, pool: Values) -> Values:
    """What was returned, and a pool, in a form that does not depend on the order in a dict."""
    if isinstance(returned, list | tuple):
        returned = [list(pair) if isinstance(pair, tuple) else pair for pair in returned]
    tables = dict(sorted(pool["tables"].items()))
    free = pool["free"]
    same = [[a, b] for a in tables for b in tables if a < b and tables[a] is tables[b]]
    return {
        "what it returned": returned,
        "pool.tables": tables,
        "pool.tokens": dict(sorted(pool["tokens"].items())),
        "pool.free": free,
        "pool.free, sorted": sorted(free),
        "pool.users": pool["users"],
        "sequences with a table": list(tables),
        "sequences with the same list as table": same,
    }


def free(answer: Any, inputs: Values) -> Values:
    """As `on_pool`; for a sequence that has no blocks, a KeyError is what it returns."""

    def caught(pool: SimpleNamespace, name: str) -> Any:
        known = name in pool.tables
        try:
            return answer(pool, name)
        except KeyError:
            if known:
                raise
            return "KeyError"

    return on_pool(caught, inputs)


def write(answer: Any, inputs: Values) -> Values:
    """The cache after `write(cache, new, table, start)`."""
    answer(*(inputs[name] for name in ("cache", "new", "table", "start")))
    return {"the cache": inputs["cache"]}


def attention(answer: Any, inputs: Values) -> Values:
    """What `paged_attention(…)` gives; what is not finite is listed apart, so that it compares."""
    from torch import Tensor

    names = ("q", "key_cache", "value_cache", "table", "length")
    output = answer(*(inputs[name] for name in names))
    return finite(require_type(output, Tensor, "a tensor"))


def finite(output: "Tensor") -> Values:
    """The rows of an output that are not finite, and the other entries."""
    import torch

    bad = ~torch.isfinite(output)
    rows = sorted({row for row, *_ in bad.nonzero().tolist()})
    return {"heads with NaN or infinity": rows, "the output": output.masked_fill(bad, 0)}


def hash_block(parent: Any, tokens: Any) -> str:
    """A short hash of a parent and tokens."""
    return hashlib.sha256(repr((parent, list(tokens))).encode()).hexdigest()[:8]


def hashes(answer: Any, inputs: Values) -> Values:
    """What `block_hashes(tokens, block_size, adapter, hash_block)` gives."""
    returned = answer(inputs["tokens"], inputs["block_size"], inputs["adapter"], hash_block)
    returned = list(require_type(returned, (list, tuple), "a list of hashes"))
    return {"the number of hashes": len(returned), "the hashes": returned}
