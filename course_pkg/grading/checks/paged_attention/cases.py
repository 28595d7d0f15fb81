"""`paged-attention`: the cases of its questions, and their right values.

Pools are small and consistent: every block is free or in a table. Chapter: exercises.
"""

import math
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_pkg.attention import paged

from ...contract.seeds import numpy_rng
from . import student
from .by_hand import (  # noqa: F401 (questions.toml names them)
    by_hand,
    by_hand_computed_expected,
    by_hand_free_expected,
    by_hand_slot_expected,
    by_hand_tables_expected,
)

Inputs = dict[str, Any]


def _pool(rng: Random, size: int, free: int, own: dict[str, int], **forks: str) -> Inputs:
    """A pool of blocks of `size` tokens, in random order, of which `free` are free.

    own: the tokens of sequences with blocks of their own. forks: sequences with another's blocks.
    """
    needed = {name: math.ceil(tokens / size) for name, tokens in own.items()}
    numbers = list(range(1, free + sum(needed.values()) + 1))
    rng.shuffle(numbers)
    tables = {name: [numbers.pop() for _ in range(count)] for name, count in needed.items()}
    tables |= {child: list(tables[parent]) for child, parent in forks.items()}
    tokens = own | {child: own[parent] for child, parent in forks.items()}
    return _counted({"block_size": size, "free": numbers, "tables": tables, "tokens": tokens})


def _counted(pool: Inputs) -> Inputs:
    """The pool with its numbers of users, which are counted in the tables."""
    tables = pool["tables"].values()
    users = Counter(block for table in tables for block in table)
    blocks = max([*users, *pool["free"]])
    users = [users[block] for block in range(blocks + 1)]
    names = [*student.POOL, *(student.CACHED if "cached" in pool else [])]
    return {name: (pool | {"users": users})[name] for name in names}


def _changed(inputs: Inputs, returned: Any, **changes: Any) -> Inputs:
    """What is expected if an answer changes the pool so."""
    return student.described(returned, **_counted(inputs | changes))


def _grown(inputs: Inputs, table: list[int], tokens: int, free: list[int]) -> Inputs:
    """What is expected if `free` gives the table of `name` the blocks that it lacks, if it can."""
    needed = math.ceil(tokens / inputs["block_size"]) - len(table)
    if needed > len(free):
        return _changed(inputs, False)
    changes: Inputs = {
        "tables": inputs["tables"] | {inputs["name"]: table + free[:needed]},
        "tokens": inputs["tokens"] | {inputs["name"]: tokens},
        "free": free[needed:],
    }
    if "cached" in inputs:
        pairs = inputs["cached"].items()
        changes["cached"] = {key: block for key, block in pairs if block not in free[:needed]}
    return _changed(inputs, True, **changes)


def allocate_expected(inputs: Inputs) -> Inputs:
    """A table of blocks from the front of the free ones."""
    return _grown(inputs, [], inputs["count"], inputs["free"])


def _new(rng: Random, blocks: int, free: int, *, whole: bool = False) -> Inputs:
    """A prompt for so many blocks, of which the last is full or not."""
    size = rng.randint(3, 6)
    count = blocks * size - (0 if whole else rng.randint(1, size - 1))
    pool = _pool(rng, size, free, {"a": rng.randint(1, 3 * size)})
    return pool | {"name": "b", "count": count}


def allocate_table(rng: Random, size: int) -> Inputs:
    """Two blocks or more; the last is not full."""
    return _new(rng, 2 + size, 4 + size)


allocate_counted = allocate_table


def allocate_whole(rng: Random, size: int) -> Inputs:
    """The last block is full too."""
    return _new(rng, 1 + size, 3 + size, whole=True)


def allocate_limit(rng: Random, size: int) -> Inputs:
    """All free blocks are enough, or one is lacking, or two."""
    return _new(rng, 3 + size, 3)


def append_expected(inputs: Inputs) -> Inputs:
    """The table, with more blocks if they are needed."""
    name = inputs["name"]
    tokens = inputs["tokens"][name] + inputs["count"]
    return _grown(inputs, inputs["tables"][name], tokens, inputs["free"])


def _more(rng: Random, stored: int, size: int, count: int, free: int = 4) -> Inputs:
    """`count` tokens for "a", which has 1 or 2 full blocks and `stored` tokens in the next."""
    tokens = size * rng.randint(1, 2) + stored
    pool = _pool(rng, size, free, {"a": tokens, "b": rng.randint(1, size)})
    return pool | {"name": "a", "count": count}


def append_room(rng: Random, size: int) -> Inputs:
    """The last block has room; in the second case exactly enough."""
    block, stored = rng.randint(4, 6), rng.randint(1, 2)
    return _more(rng, stored, block, block - stored if size == 1 else 1)


def append_next(rng: Random, size: int) -> Inputs:
    """The last block is full."""
    block = rng.randint(3, 6)
    return _more(rng, 0, block, 1 if size == 0 else rng.randint(1, block - 1))


def _several(rng: Random, free: int, blocks: int = 2) -> Inputs:
    """Two more blocks; the room in the last one counts."""
    block = rng.randint(4, 6)
    stored = rng.randint(1, block - 2)
    rest = rng.randint(1, block - stored - 1)  # fits into the last block
    return _more(rng, stored, block, blocks * block + rest, free)


def append_several(rng: Random, size: int) -> Inputs:
    """Two more blocks; the room in the last one counts."""
    return _several(rng, 4)


def append_limit(rng: Random, size: int) -> Inputs:
    """No block is free or needed; or one of two is lacking; or there are exactly enough."""
    return _more(rng, 1, 4, rng.randint(1, 2), 0) if size == 0 else _several(rng, size)


def fork_expected(inputs: Inputs) -> Inputs:
    """The child has the parent's blocks and tokens."""
    parent, child = inputs["name"], inputs["child"]
    return _changed(
        inputs,
        None,
        tables=inputs["tables"] | {child: list(inputs["tables"][parent])},
        tokens=inputs["tokens"] | {child: inputs["tokens"][parent]},
    )


def _family(rng: Random, size: int) -> Inputs:
    """A parent with two blocks or more; in the third case they are shared already."""
    block = rng.randint(3, 6)
    own = {"a": block * (2 + size % 2) - rng.randint(1, block - 1), "b": rng.randint(1, block)}
    pool = _pool(rng, block, 4, own, **({"c": "a"} if size == 2 else {}))
    return pool | {"name": "a", "child": "d"}


fork_table = fork_counted = fork_separate = _family


def free_expected(inputs: Inputs) -> Inputs:
    """The blocks that nobody has any more are at the end of the free ones."""
    name = inputs["name"]
    if name not in inputs["tables"]:
        return _changed(inputs, "KeyError")
    tables = {other: table for other, table in inputs["tables"].items() if other != name}
    tokens = {other: count for other, count in inputs["tokens"].items() if other != name}
    used = {block for table in tables.values() for block in table}
    back = [block for block in reversed(inputs["tables"][name]) if block not in used]
    return _changed(inputs, None, tables=tables, tokens=tokens, free=inputs["free"] + back)


def free_alone(rng: Random, size: int) -> Inputs:
    """A sequence of three blocks or four, which nobody shares."""
    block = rng.randint(3, 5)
    own = {"a": block * (3 + size % 2), "b": rng.randint(1, block)}
    return _pool(rng, block, 2 + size, own) | {"name": "a"}


free_order = free_alone


def free_shared(rng: Random, size: int) -> Inputs:
    """A fork, which then took `size` blocks for itself."""
    block = rng.randint(3, 5)
    pool = _pool(rng, block, 2 + size, {"a": block * 2, "b": 1}, c="a")
    pool["tables"]["c"] += [pool["free"].pop() for _ in range(size)]
    pool["tokens"]["c"] += block * size
    return _counted(pool) | {"name": "c"}


def free_unknown(rng: Random, size: int) -> Inputs:
    """A sequence that was freed before."""
    return free_alone(rng, size) | {"name": "d"}


def copy_on_write_expected(inputs: Inputs) -> Inputs:
    """Every written block that another sequence has too is replaced by a copy."""
    size, tables, name = inputs["block_size"], inputs["tables"], inputs["name"]
    others = {block for other in tables if other != name for block in tables[other]}
    written = {position // size for position in range(inputs["start"], inputs["stop"])}
    shared = [index for index in sorted(written) if tables[name][index] in others]
    if len(shared) > len(inputs["free"]):
        return _changed(inputs, None)
    table, free = list(tables[name]), list(inputs["free"])
    for index in shared:
        table[index] = free.pop(0)
    pairs = [(tables[name][index], table[index]) for index in shared]
    return _changed(inputs, pairs, tables=tables | {name: table}, free=free)


def _written(
    rng: Random, first: int, last: int, *,
    free: int = 4, users: int = 2, own: int = 0, end: int | None = None,
) -> Inputs:  # fmt: skip
    """A fork of four blocks, of which the last `own` are its own, writes to some of them.

    first, last: the indices of the blocks. end: where in the last block it stops.
    """
    size = rng.randint(4, 6)
    forks = {"b": "a", "c": "a"} if users == 3 else {"b": "a"}
    pool = _pool(rng, size, free + own, {"a": 4 * size}, **forks)
    for index in range(4 - own, 4):
        pool["tables"]["b"][index] = pool["free"].pop()
    start = first * size + rng.randrange(1, size - 2)
    stop = last * size + (rng.randint(size - 2, size - 1) if end is None else end % size or size)
    return _counted(pool) | {"name": "b", "start": start, "stop": stop}


def copy_on_write_one(rng: Random, size: int) -> Inputs:
    """One block; in the second case it has three users."""
    return _written(rng, index := rng.randint(0, 2), index, users=3 if size == 1 else 2)


def copy_on_write_several(rng: Random, size: int) -> Inputs:
    """Two blocks; the second is written to its end, or only its first slot is."""
    return _written(rng, 1, 2, end=[None, 0, 1][size])


def copy_on_write_counted(rng: Random, size: int) -> Inputs:
    """Two blocks or three; others are shared too."""
    return _written(rng, 0, 1 + size % 2)


def copy_on_write_alone(rng: Random, size: int) -> Inputs:
    """The second of two written blocks is the sequence's own."""
    return _written(rng, 1, 2, own=2)


def copy_on_write_limit(rng: Random, size: int) -> Inputs:
    """There are exactly enough blocks, or one is lacking, or both are."""
    return _written(rng, 1, 2, free=2 - size)


def slots_expected(inputs: Inputs) -> list[int]:
    """Block number times block size, plus the offset."""
    size, start = inputs["block_size"], inputs["start"]
    every = [block * size + offset for block in inputs["table"] for offset in range(size)]
    return every[start : start + inputs["count"]]


def _positions(rng: Random, size: int, *, across: bool) -> Inputs:
    block = rng.randint(4, 8)
    table = rng.sample(range(2, 20), 4)
    first, offset = rng.randint(1, 2), rng.randint(1, block - 2)
    count = rng.randint(block - offset + 1, block + 1) if across else 1 + size % 2
    return {"table": table, "start": first * block + offset, "count": count, "block_size": block}


slots_within = partial(_positions, across=False)
slots_across = partial(_positions, across=True)


def write_expected(inputs: Inputs) -> dict[str, Tensor]:
    """Keys and values are written alike."""
    cache = inputs["cache"].clone()
    paged.write((cache, cache.clone()), inputs["new"], inputs["new"], torch.tensor(inputs["slots"]))
    return {"the cache": cache}


def _rows(rng: Random, size: int, *, several: bool) -> Inputs:
    shape, draw = (5, 2, 3 + size, 7), partial(numpy_rng(rng).standard_normal, dtype="float32")
    slots = rng.sample(range(shape[2], 5 * shape[2]), 3 + size if several else 1)
    slots.insert(0, slots.pop(slots.index(min(slots))))  # behind the first, there is room
    return {"cache": draw(shape), "new": draw((len(slots), 2, 7)), "slots": slots}


write_one = partial(_rows, several=False)
write_several = partial(_rows, several=True)


def attention_expected(inputs: Inputs) -> Inputs:
    """`course_pkg.attention.paged` in double precision."""
    q, keys, values = (inputs[name].double() for name in ("q", "key_cache", "value_cache"))
    table, length = inputs["table"], inputs["length"]
    output = paged.paged_attention(q[None], keys, values, [table], [length], [0, 1])
    return student.finite(output[0].float())


def _query(
    rng: Random, blocks: int, group: int = 1, *, empty: bool = False, spare: int = 0
) -> Inputs:
    """A table of scattered blocks; `empty`: its last one is partly filled, `spare` are unused."""
    size, draw = rng.randint(4, 5), partial(numpy_rng(rng).standard_normal, dtype="float32")
    shape = blocks + spare + 3, 2 if group > 1 else 3, size, 7
    table = rng.sample(range(1, shape[0]), blocks + spare)
    if blocks > 1 and table[0] < table[1]:  # sorted blocks would hide a mistake
        table[:2] = table[1::-1]
    inputs = {"q": draw((group * shape[1], 7)), "key_cache": draw(shape)}
    inputs |= {"value_cache": draw(shape), "table": table}
    return inputs | {"length": blocks * size - (rng.randint(1, size - 2) if empty else 0)}


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
    block, offset = inputs["table"][-1], inputs["length"] % inputs["key_cache"].shape[2]
    for name in ("key_cache", "value_cache"):
        inputs[name][block, :, offset:] = math.inf if size == 1 else math.nan
    return inputs


def attention_grouped(rng: Random, size: int) -> Inputs:
    """Two key heads, and two, three or four times as many query heads."""
    return _query(rng, 2, 2 + size)


def block_hashes_expected(inputs: Inputs) -> Inputs:
    """The chain of hashes, which starts with the adapter."""
    tokens, size, parent = inputs["tokens"], inputs["block_size"], inputs["adapter"]
    found = []
    for index in range(len(tokens) // size):
        parent = student.hash_block(parent, tokens[index * size : (index + 1) * size])
        found.append(parent)
    return {"the number of hashes": len(found), "the hashes": found}


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
    tokens, size, hits = inputs["tokens"], inputs["block_size"], []
    for index, key in enumerate(inputs["hashes"]):
        block, stored = inputs["cached"].get(key, (0, []))
        part = tokens[index * size : (index + 1) * size]
        if stored != part or (index + 1) * size >= len(tokens):
            break
        hits.append(block)
    return hits


def _cached(rng: Random, blocks: int, tail: int, missing: int | None = None) -> Inputs:
    """A prompt, and a cache that lacks only its block `missing`; other blocks are in it too."""
    inputs = _prompt(rng, rng.randint(2, 3), blocks, tail)
    size, tokens = inputs["block_size"], inputs["tokens"]
    hashes = block_hashes_expected(inputs)["the hashes"]
    numbers = rng.sample(range(1, 30), blocks + 1)
    cached = {student.hash_block("", [number]): [number, [number] * size] for number in numbers[-1:]}
    for index, key in enumerate(hashes):
        if index != missing:
            cached[key] = [numbers[index], tokens[index * size : (index + 1) * size]]
    return {"tokens": tokens, "block_size": size, "hashes": hashes, "cached": cached}


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


def admit_expected(inputs: Inputs) -> Inputs:
    """The hits, which are not free any more, then blocks from the front of those that are."""
    free = [block for block in inputs["free"] if block not in inputs["hits"]]
    return _grown(inputs, inputs["hits"], inputs["count"], free)


def _admitted(rng: Random, used: int, idle: int, new: int, free: int) -> Inputs:
    """Hits on `used` blocks of a sequence, then on `idle` free ones; `new` more, of `free` others.

    Of the other free blocks, all but the first are cached, too.
    """
    size = rng.randint(3, 5)
    pool = _pool(rng, size, idle + free, {"a": 3 * size})
    front, hits = pool["free"][:1], pool["free"][1 : 1 + idle]
    hits = pool["tables"]["a"][:used] + hits
    known = [block for block in range(1, len(pool["users"])) if block not in front]
    pool["cached"] = {student.hash_block("", [block]): block for block in known}
    count = (len(hits) + new) * size - rng.randint(0, size - 1)
    return _counted(pool) | {"name": "b", "count": count, "hits": hits}


def admit_shared(rng: Random, size: int) -> Inputs:
    """The hits are in use."""
    return _admitted(rng, 1 + size % 2, 0, 1 + size % 2, 4)


def admit_revived(rng: Random, size: int) -> Inputs:
    """Some hits are free."""
    return _admitted(rng, size, 2, 2, 4)


def admit_limit(rng: Random, size: int) -> Inputs:
    """Exactly enough, or one is lacking, or two; in the free list are two hits, too."""
    return _admitted(rng, 1, 2, 2 + size, 2)


def admit_evicted(rng: Random, size: int) -> Inputs:
    """Two or three blocks are taken, of which all but the first are cached."""
    return _admitted(rng, 1, 1, 2 + size % 2, 4)
