"""`paged-attention`: the cases of its questions, and the right values of those without a pool.

The questions about the cache, `write` and `attention`, need torch; the others need no library.

Chapter: exercises.
"""

import math
from functools import partial
from random import Random
from typing import Any

from course_pkg.grading.assignments.paged_attention import student
from course_pkg.grading.assignments.paged_attention.pools import *  # noqa: F403 (for questions.toml)
from course_pkg.grading.questions.draws import normal_arrays
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.sequence import Sequence

Inputs = dict[str, Any]


def by_hand(rng: Random | None) -> Inputs:
    """Two prompts that end within a block; each of them takes two blocks or more as it grows."""
    if rng is None:
        case = {"block_size": 4, "blocks": 14, "a": 10, "b": 7, "new": 7}
        return case | {"position": 9, "c": 21, "common": 7}
    while True:
        size = rng.randint(4, 8)
        case = {"block_size": size, "blocks": rng.randint(18, 24)}
        case |= {"a": rng.randint(size + 2, 4 * size), "b": rng.randint(size, 4 * size)}
        case["new"] = rng.randint(size + 1, 3 * size)
        case["position"] = rng.randrange(size, case["b"] + case["new"])
        case["c"] = case["a"] + rng.randint(20, 60)
        case["common"] = rng.randint(size + 1, case["a"])
        prompts = [case["a"], case["b"]]
        final = [tokens + case["new"] for tokens in prompts]
        pairs = zip(prompts, final, strict=True)
        taken = [math.ceil(end / size) - tokens // size - 1 for tokens, end in pairs]
        in_a_block = [*prompts, *final, case["common"]]
        if min(taken) > 1 and all(n % size for n in in_a_block):
            return case


def by_hand_expected(case: Inputs) -> Inputs:
    """What the block manager does with both prompts, and then new tokens in turns; and with c."""
    manager = BlockManager(case["blocks"], case["block_size"], prefix_cache=False)
    a, b = (Sequence(name, [0] * case[name]) for name in "ab")
    for sequence in (a, b):
        manager.allocate(sequence)
    for sequence in [a, b] * case["new"]:
        sequence.tokens.append(0)
        manager.append(sequence, 1)
    cached = BlockManager(99, case["block_size"])
    prompt = list(range(case["a"]))
    cached.allocate(Sequence("a", prompt))
    c = prompt[: case["common"]] + [-1] * (case["c"] - case["common"])
    return {
        "tables": [manager.table(a), manager.table(b)],
        "free": [manager.pool.num_free, manager.empty_slots()],
        "slot": manager.slots(b, case["position"], 1)[0],
        "computed": len(c) - cached.allocate(Sequence("c", c)),
    }


def write_expected(inputs: Inputs) -> Inputs:
    """`course_pkg.acceleration.attention.paged`, which writes keys and values alike."""
    import torch

    from course_pkg.acceleration.attention import paged

    cache, new, table, start = inputs.values()
    cache = cache.clone()
    size = cache.shape[2]
    slots = [table[t // size] * size + t % size for t in range(start, start + len(new))]
    paged.write((cache, cache.clone()), new, new, torch.tensor(slots))
    return {"the cache": cache}


def _rows(rng: Random, size: int, *, tokens: int | None = None) -> Inputs:
    """New tokens, for the second block and, without `tokens`, the third one."""
    block = 4 + size
    start = block + 1 + rng.randrange(2)
    count = tokens or rng.randint(block, block + 1)
    table = rng.sample(range(2, 6), 4)
    arrays = normal_arrays(rng, cache=(7, 2, block, 7), new=(count, 2, 7))
    return arrays | {"table": table, "start": start}


write_one = partial(_rows, tokens=1)
write_within = partial(_rows, tokens=2)
write_across = _rows


def attention_expected(inputs: Inputs) -> Inputs:
    """`course_pkg.acceleration.attention.paged` in double precision."""
    from course_pkg.acceleration.attention import paged

    q, keys, values = (inputs[name].double() for name in ("q", "key_cache", "value_cache"))
    where = [inputs["table"]], [inputs["length"]], [0, 1]
    output = paged.paged_attention(q[None], keys, values, *where)
    return student.finite(output[0].float())


def _query(
    rng: Random, blocks: int, group: int = 1, *, empty: bool = False, spare: int = 0
) -> Inputs:
    """A table of scattered blocks; `empty`: its last one is partly filled, `spare` are unused."""
    size = rng.randint(4, 5)
    shape = blocks + spare + 3, 2 if group > 1 else 3, size, 7
    table = rng.sample(range(1, shape[0]), blocks + spare)
    if blocks > 1 and table[0] < table[1]:  # sorted blocks would hide a mistake
        table[:2] = table[1::-1]
    length = blocks * size - (rng.randint(1, size - 2) if empty else 0)
    arrays = normal_arrays(rng, q=(group * shape[1], 7), key_cache=shape, value_cache=shape)
    return arrays | {"table": table, "length": length}


def attention_one(rng: Random, size: int) -> Inputs:
    """One full block."""
    return _query(rng, 1)


def attention_scattered(rng: Random, size: int) -> Inputs:
    """Several full blocks."""
    return _query(rng, 2 + size)


def attention_partial(rng: Random, size: int) -> Inputs:
    """The last block is partly filled; in the third case the table has one block too many."""
    return _query(rng, 1 + size, empty=True, spare=size // 2)


def attention_stale(rng: Random, size: int) -> Inputs:
    """What is beyond the length is not a number, or infinite."""
    inputs = _query(rng, 1 + size, empty=True)
    block = inputs["table"][-1]
    offset = inputs["length"] % inputs["key_cache"].shape[2]
    for name in ("key_cache", "value_cache"):
        inputs[name][block, :, offset:] = math.inf if size == 1 else math.nan
    return inputs


def attention_grouped(rng: Random, size: int) -> Inputs:
    """Two key heads, and two, three or four times as many query heads."""
    return _query(rng, 2, 2 + size)


def _blocks(inputs: Inputs) -> list[list[int]]:
    """The full blocks of a prompt."""
    size = inputs["block_size"]
    ends = range(size, len(inputs["tokens"]) + 1, size)
    return [inputs["tokens"][end - size : end] for end in ends]


def block_hashes_expected(inputs: Inputs) -> Inputs:
    chain = [inputs["adapter"]]
    for block in _blocks(inputs):
        chain.append(student.hash_block(chain[-1], block))
    return {"the number of hashes": len(chain) - 1, "the hashes": chain[1:]}


def _prompt(rng: Random, block: int, blocks: int, tail: int = 0, adapter: str = "") -> Inputs:
    tokens = [rng.randint(1, 99) for _ in range(block * blocks + tail)]
    return {"tokens": tokens, "block_size": block, "adapter": adapter}


def block_hashes_full(rng: Random, size: int) -> Inputs:
    """One token of another block, all but one, or any number between."""
    block = rng.randint(3, 4)
    return _prompt(rng, block, rng.randint(1, 6), [1, block - 1, rng.randint(1, block - 1)][size])


def block_hashes_chained(rng: Random, size: int) -> Inputs:
    """The first block comes a second time at the end, after a different one."""
    inputs = _prompt(rng, rng.randint(2, 4), 3)
    block = inputs["block_size"]
    inputs["tokens"][-block:] = inputs["tokens"][:block]
    return inputs


def block_hashes_adapter(rng: Random, size: int) -> Inputs:
    """One block, with an adapter."""
    return _prompt(rng, 2 + size, 1, adapter=rng.choice(["legal", "medical", "poems"]))


def find_hits_expected(inputs: Inputs) -> list[int]:
    """The cached blocks up to the first that is not, without that of the last token."""
    hits = []
    before_last = (len(inputs["tokens"]) - 1) // inputs["block_size"]
    pairs = zip(inputs["hashes"], _blocks(inputs), strict=True)
    for key, tokens in list(pairs)[:before_last]:
        block, stored = inputs["cached"].get(key, (0, []))
        if stored != tokens:
            break
        hits.append(block)
    return hits


def _cached(rng: Random, blocks: int, tail: int, missing: int | None = None) -> Inputs:
    """A prompt, and a cache that lacks only its block `missing`; another block is in it too."""
    inputs = _prompt(rng, rng.randint(2, 3), blocks, tail)
    hashes = block_hashes_expected(inputs)["the hashes"]
    *numbers, other = rng.sample(range(1, 30), blocks + 1)
    cached = {student.hash_block("", [other]): [other, [other] * inputs["block_size"]]}
    for index, (number, tokens) in enumerate(zip(numbers, _blocks(inputs), strict=True)):
        if index != missing:
            cached[hashes[index]] = [number, tokens]
    del inputs["adapter"]
    return inputs | {"hashes": hashes, "cached": cached}


def find_hits_first(rng: Random, size: int) -> Inputs:
    """All full blocks, before a tail of one token; or all but the last of these."""
    return _cached(rng, 2 + size, 1, 1 + size if size else None)


def find_hits_stops(rng: Random, size: int) -> Inputs:
    """A block in the middle is missing, or the first."""
    return _cached(rng, 4, 1, [1, 2, 0][size])


def find_hits_last(rng: Random, size: int) -> Inputs:
    """Every block is cached, and the last token ends a block."""
    return _cached(rng, 2 + size, 0)


def find_hits_collision(rng: Random, size: int) -> Inputs:
    """A block has the hash, but not the tokens."""
    inputs = _cached(rng, 3, 1)
    stored = inputs["cached"][inputs["hashes"][rng.randint(0, 2)]]
    stored[1] = [token + 1 for token in stored[1]]
    return inputs
