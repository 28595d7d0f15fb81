"""`paged-attention`: the cases of its questions, and the right values of those without a pool.

The questions about the cache, `write` and `attention`, need torch; the others need no library.
"""

import math
from collections import Counter
from random import Random
from typing import Any

from course_pkg.grading.assignments.paged_attention import student
from course_pkg.grading.questions.comparators import exactly, parts
from course_pkg.grading.questions.draws import each_then_any, normal_arrays
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


def draw_family(rng: Random, size: int) -> Inputs:
    """A parent with two blocks or more; in the third case they are shared already."""
    block = rng.randint(3, 6)
    own = {"a": block * (2 + size % 2) - rng.randint(1, block - 1), "b": rng.randint(1, block)}
    pool = _pool(rng, block, 4, own, **({"c": "a"} if size == 2 else {}))
    return pool | {"parent": "a", "child": "d"}


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


def free_shared(rng: Random, size: int) -> Inputs:
    """A fork, which then took `size` blocks for itself."""
    block = rng.randint(3, 5)
    pool = _pool(rng, block, 2 + size, {"a": block * 2, "b": 1}, c="a")
    pool["tables"]["c"] += [pool["free"].pop() for _ in range(size)]
    pool["tokens"]["c"] += block * size
    return _counted(pool) | {"name": "c"}


def free_unknown(rng: Random, size: int) -> Inputs:
    """A sequence that was freed before; one that has blocks; then any of these."""
    pool = free_alone(rng, size % 3)
    return pool | {"name": "a" if each_then_any(rng, size, 2) else "d"}


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

    new, table, start = inputs["new"], inputs["table"], inputs["start"]
    cache = inputs["cache"].clone()
    size = cache.shape[2]
    slots = [table[t // size] * size + t % size for t in range(start, start + len(new))]
    paged.write((cache, cache.clone()), new, new, torch.tensor(slots))
    return {"the cache": cache}


def draw_rows(rng: Random, size: int, *, tokens: int | None = None) -> Inputs:
    """New tokens, for the second block and, without `tokens`, the third one."""
    block = 4 + size
    start = block + 1 + rng.randrange(2)
    count = tokens or rng.randint(block, block + 1)
    table = rng.sample(range(2, 6), 4)
    arrays = normal_arrays(rng, cache=(7, 2, block, 7), new=(count, 2, 7))
    return arrays | {"table": table, "start": start}


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
