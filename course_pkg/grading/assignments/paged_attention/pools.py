"""`paged-attention`: pools of blocks, and what the engine's block manager does in them.

Every block is free or in a table. Two rules are the task's own: a freed block goes to the end of
the free ones, and a sequence may write to any of its blocks. Chapter: exercises.
"""

import math
from collections import Counter
from random import Random
from typing import Any

from course_pkg.grading.assignments.paged_attention import student
from course_pkg.grading.questions.comparators import exactly, parts
from course_pkg.grading.questions.draws import each_then_any
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.sequence import Sequence

Inputs = dict[str, Any]


def _pool(rng: Random, size: int, free: int, own: dict[str, int], **forks: str) -> Inputs:
    """A pool of blocks of `size` tokens, in random order; `free` of them are free.

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
    users = Counter(block for table in pool["tables"].values() for block in table)
    pool["users"] = [users[block] for block in range(max([*users, *pool["free"]]) + 1)]
    return {name: pool[name] for name in student.POOL}


class _Engine:
    """The engine's block manager in the state of a pool.

    numbers: the pool's number of each of the manager's blocks. sequences: by name.
    """

    def __init__(self, pool: Inputs) -> None:
        self.pool = pool
        self.manager = BlockManager(len(pool["users"]) - 1, pool["block_size"], prefix_cache=False)
        self.numbers: dict[int, int] = {}
        self.sequences: dict[str, Sequence] = {}
        for name, table in pool["tables"].items():
            sequence = Sequence(name, [0] * pool["tokens"][name])
            parents = [s for s in self.sequences.values() if pool["tables"][s.id][0] == table[0]]
            if parents:
                self.manager.fork(parents[0], sequence)
                count = len(sequence.tokens) - len(parents[0].tokens)
                self.manager.append(sequence, count)
            else:
                self.manager.allocate(sequence)
            self.numbers |= zip(self.manager.table(sequence), table, strict=True)
            self.sequences[name] = sequence
        self.numbers |= zip(self._free(), pool["free"], strict=True)

    def _free(self) -> list[int]:
        return [block.number for block in self.manager.pool.blocks if block.users == 0]

    def after(self, returned: Any) -> Inputs:
        """What is expected if an answer returns that and does what the manager did."""
        free = [self.numbers[block] for block in self._free()]
        old = [block for block in self.pool["free"] if block in free]
        live = {name: s for name, s in self.sequences.items() if self.manager.stored(s)}
        tables = {name: self._table(sequence) for name, sequence in live.items()}
        freed = [b for table in self.pool["tables"].values() for b in table[::-1] if b in free]
        tokens = {name: self.manager.stored(sequence) for name, sequence in live.items()}
        changes = {"tables": tables, "tokens": tokens, "free": old + freed}
        return student.described(returned, _counted(self.pool | changes))

    def _table(self, sequence: Sequence) -> list[int]:
        return [self.numbers[block] for block in self.manager.table(sequence)]


def allocate_expected(inputs: Inputs) -> Inputs:
    """What the manager allocates, if it can."""
    engine = _Engine(inputs)
    new = Sequence(inputs["name"], [0] * inputs["count"])
    possible = engine.manager.can_allocate(new)
    if possible:
        engine.manager.allocate(new)
        engine.sequences[new.id] = new
    return engine.after(possible)


def _new(rng: Random, blocks: int, free: int, *, whole: bool = False) -> Inputs:
    """A prompt for that many blocks; the last is full or not."""
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
    """All free blocks are enough, or one is lacking, or two; then some may be left."""
    return _new(rng, 3 + size, 3) if size < 3 else _new(rng, rng.randint(2, 5), 4)


def append_expected(inputs: Inputs) -> Inputs:
    """What the manager appends, if it can."""
    engine = _Engine(inputs)
    sequence = engine.sequences[inputs["name"]]
    possible = engine.manager.can_append(sequence, inputs["count"])
    if possible:
        sequence.tokens += [0] * inputs["count"]
        engine.manager.append(sequence, inputs["count"])
    return engine.after(possible)


def _more(rng: Random, stored: int, size: int, count: int, free: int = 4) -> Inputs:
    """`count` tokens for "a", which has 1 or 2 full blocks and `stored` tokens in the next."""
    tokens = size * rng.randint(1, 2) + stored
    pool = _pool(rng, size, free, {"a": tokens, "b": rng.randint(1, size)})
    return pool | {"name": "a", "count": count}


def append_room(rng: Random, size: int) -> Inputs:
    """The last block has room; in the second case exactly enough."""
    block = rng.randint(4, 6)
    stored = rng.randint(1, 2)
    return _more(rng, stored, block, block - stored if size == 1 else 1)


def append_next(rng: Random, size: int) -> Inputs:
    """The last block is full."""
    block = rng.randint(3, 6)
    return _more(rng, 0, block, 1 if size == 0 else rng.randint(1, block - 1))


def append_several(rng: Random, size: int, free: int = 4) -> Inputs:
    """Two more blocks; the room in the last one counts."""
    block = rng.randint(4, 6)
    stored = rng.randint(1, block - 2)
    rest = rng.randint(1, block - stored - 1)  # fits into the last block
    return _more(rng, stored, block, 2 * block + rest, free)


def append_limit(rng: Random, size: int) -> Inputs:
    """No block is free or needed; or one of two is lacking; or there are exactly enough."""
    if size == 0:
        return _more(rng, 1, 4, rng.randint(1, 2), 0)
    return append_several(rng, size, free=size)


def fork_expected(inputs: Inputs) -> Inputs:
    """What the manager forks."""
    engine = _Engine(inputs)
    parent = engine.sequences[inputs["parent"]]
    child = Sequence(inputs["child"], parent.tokens)
    engine.manager.fork(parent, child)
    engine.sequences[child.id] = child
    return engine.after(None)


def _family(rng: Random, size: int) -> Inputs:
    """A parent with two blocks or more; in the third case they are shared already."""
    block = rng.randint(3, 6)
    own = {"a": block * (2 + size % 2) - rng.randint(1, block - 1), "b": rng.randint(1, block)}
    pool = _pool(rng, block, 4, own, **({"c": "a"} if size == 2 else {}))
    return pool | {"parent": "a", "child": "d"}


fork_table = fork_counted = fork_separate = _family


def free_expected(inputs: Inputs) -> Inputs:
    """What the manager frees; a KeyError for a sequence without blocks."""
    engine = _Engine(inputs)
    sequence = engine.sequences.get(inputs["name"])
    if sequence is None:
        return engine.after("KeyError")
    engine.manager.free(sequence)
    return engine.after(None)


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
    """A sequence that was freed before; one that has blocks; then any of these."""
    return free_alone(rng, size % 3) | {"name": "da"[each_then_any(rng, size, 2)]}


def refusal(expected: Inputs, given: Inputs) -> str | None:
    """A comparator: a KeyError and the same free blocks, or no KeyError: others judge the rest."""
    error = {"what it returned": exactly(), "pool.free": exactly()}
    if "KeyError" in (expected["what it returned"], given["what it returned"]):
        return parts(error)(expected, given)
    return None


def copy_on_write_expected(inputs: Inputs) -> Inputs:
    """Every written block that another sequence has too is replaced by a copy."""
    size = inputs["block_size"]
    free = inputs["free"]
    table = list(inputs["tables"][inputs["name"]])
    written = range(inputs["start"] // size, (inputs["stop"] - 1) // size + 1)
    shared = [index for index in written if inputs["users"][table[index]] > 1]
    if len(shared) > len(free):
        return student.described(None, inputs)
    pairs = [(table[index], target) for index, target in zip(shared, free, strict=False)]
    for index, (_, target) in zip(shared, pairs, strict=True):
        table[index] = target
    changes = {"tables": inputs["tables"] | {inputs["name"]: table}, "free": free[len(pairs) :]}
    return student.described(pairs, _counted(inputs | changes))


def _written(
    rng: Random,
    first: int,
    last: int,
    *,
    free: int = 4,
    users: int = 2,
    own: int = 0,
    end: int | None = None,
) -> Inputs:
    """A fork of four blocks, the last `own` of which are its own, writes to some of them.

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
    index = rng.randint(0, 2)
    return _written(rng, index, index, users=3 if size == 1 else 2)


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
