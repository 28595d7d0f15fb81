"""`paged-attention`: the cases of the block manager's questions, and their right values.

Pools are small and consistent: every block is free or in a table. Chapter: exercises.
"""

import math
from collections import Counter
from random import Random
from typing import Any

from . import student

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
    return {name: (pool | {"users": users})[name] for name in student.POOL}


def _changed(inputs: Inputs, returned: Any, **changes: Any) -> Inputs:
    """What is expected if an answer changes the pool so."""
    return student.described(returned, _counted(inputs | changes))


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
    parent, child = inputs["parent"], inputs["child"]
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
    return pool | {"parent": "a", "child": "d"}


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
