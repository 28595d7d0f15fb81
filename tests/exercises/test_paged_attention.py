"""`paged-attention`: its right values are those of the engine, and other right answers pass."""

import math
from random import Random
from types import SimpleNamespace

import pytest
import torch

from course_pkg.grading.check import variant
from course_pkg.grading.checks.paged_attention import cases, student
from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.calling import WrongUse
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.sequence import Sequence
from tests.exercises.assignments import earning_everything

NAME = "paged-attention"


def append_one_by_one(pool, name, count):
    """A block at a time, in lists of its own."""
    table = list(pool.tables[name])
    tokens = pool.tokens[name]
    free = list(pool.free)
    for _ in range(count):
        if tokens == len(table) * pool.block_size:
            if not free:
                return False
            table.append(free.pop(0))
        tokens += 1
    for block in table[len(pool.tables[name]) :]:
        pool.users[block] += 1
    pool.tables[name] = table
    pool.tokens[name] = tokens
    pool.free = free
    return True


def free_with_a_guard(pool, name):
    """An error of its own, and blocks that are collected first."""
    if name not in pool.tables:
        raise KeyError(f"{name} has no blocks")
    for block in pool.tables[name]:
        pool.users[block] -= 1
    pool.free += [block for block in pool.tables[name][::-1] if not pool.users[block]]
    del pool.tables[name], pool.tokens[name]


def copy_by_positions(pool, name, start, stop):
    """Every position, after a count; the pairs are lists in a tuple."""
    table = pool.tables[name]
    pairs = []
    written = sorted({position // pool.block_size for position in range(start, stop)})
    if sum(pool.users[table[index]] > 1 for index in written) > len(pool.free):
        return None
    for index in written:
        if pool.users[table[index]] > 1:
            pairs.append([table[index], pool.free.pop(0)])
            pool.users[table[index]] -= 1
            table[index] = pairs[-1][1]
            pool.users[table[index]] += 1
    return tuple(pairs)


def write_by_slots(cache, new, table, start):
    """All tokens at once."""
    size = cache.shape[2]
    t = torch.arange(start, start + len(new))
    cache[torch.tensor(table)[t // size], :, t % size] = new


def attention_by_tokens(q, key_cache, value_cache, table, length):
    """One head and one token at a time, in double precision."""
    size = key_cache.shape[2]
    group = len(q) // key_cache.shape[1]
    rows = []
    slots = [(table[t // size], t % size) for t in range(length)]
    for head, query in enumerate(q.double()):
        keys, values = (
            torch.stack([cache[block, head // group, offset] for block, offset in slots]).double()
            for cache in (key_cache, value_cache)
        )
        rows.append((keys @ query / math.sqrt(len(query))).softmax(0) @ values)
    return torch.stack(rows).float()


OTHERS = {
    "append": [append_one_by_one],
    "free": [free_with_a_guard],
    "copy-on-write": [copy_by_positions],
    "write": [write_by_slots],
    "attention": [attention_by_tokens],
}
test_another_right_answer_keeps_every_point = earning_everything(NAME, OTHERS)


@pytest.fixture(scope="module")
def model():
    """The model answers as functions."""
    key = answer_key(NAME)
    questions = key.assignment.questions.values()
    return {q.name: key.answer(q, None) for q in questions if q.call}


def renamed(tables):
    """Tables with blocks numbered in the order in which they appear."""
    numbers = {}
    return [[numbers.setdefault(block, len(numbers)) for block in table] for table in tables]


@pytest.mark.parametrize("seed", range(5))
def test_model_answers_do_what_the_block_manager_of_the_engine_does(model, seed):
    rng = Random(seed)
    size = 3
    manager = BlockManager(14, size, prefix_cache=False)
    live = {}
    pool = SimpleNamespace(
        block_size=size, free=list(range(1, 15)), users=[0] * 15, tables={}, tokens={}
    )
    for step in range(150):
        action = rng.choice(["allocate", "append", "append", "fork", "free"])
        if action == "allocate":
            one = Sequence(str(step), [0] * rng.randint(1, 9))
            possible = manager.can_allocate(one)
            assert model["allocate"](pool, one.id, len(one.tokens)) == possible
            if possible:
                live[one.id] = one
                manager.allocate(one)
        elif live:
            one = live[rng.choice(list(live))]
            if action == "free":
                manager.free(live.pop(one.id))
                model["free"](pool, one.id)
            elif action == "fork":
                live[str(step)] = one.copy(str(step))
                manager.fork(one, live[str(step)])
                model["fork"](pool, one.id, str(step))
            elif manager.can_append(one, count := rng.randint(1, 5)):
                start = len(one.tokens)
                one.tokens += [0] * count
                stop = min(start + count, len(pool.tables[one.id]) * size)
                written = start < stop and model["copy-on-write"](pool, one.id, start, stop)
                assert len(written or []) == len(manager.append(one, count))
                assert model["append"](pool, one.id, count)
        assert pool.tokens == {name: manager.stored(one) for name, one in live.items()}
        tables = renamed(manager.table(one) for one in live.values())
        assert renamed(pool.tables[name] for name in live) == tables
        assert len(pool.free) == manager.pool.free


def test_model_answers_hit_what_the_prefix_cache_of_the_engine_hits(model):
    rng = Random(0)
    size = 2
    lengths = set()
    manager = BlockManager(400, size)
    cached = {}
    for number in range(60):
        tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 9))]
        adapter = rng.choice("xy")
        hashes = model["block-hashes"](tokens, size, adapter, student.hash_block)
        hits = model["find-hits"](tokens, size, hashes, cached)
        one = Sequence(str(number), tokens, cache_key=adapter)
        assert len(hits) * size == manager.allocate(one)
        table = manager.table(one)
        assert table[: len(hits)] == hits
        for index, key in enumerate(hashes):
            cached.setdefault(key, [table[index], tokens[index * size : (index + 1) * size]])
        lengths.add(len(hits))
    assert lengths >= {0, 1, 2, 3}


def test_the_example_case_worked_by_hand():
    case = variant(f"{NAME}/by-hand")
    assert list(case.values()) == [4, 14, 10, 7, 7, 9, 21, 7]
    # Prompts: [1, 2, 3] with room for 2, [4, 5] with room for 1. Round 2: b takes 6; round 3: a
    # takes 7; round 6: b takes 8; round 7: a takes 9.
    right = cases.by_hand_expected(case)
    assert right["tables"] == [[1, 2, 3, 7, 9], [4, 5, 6, 8]]
    assert right["free"] == [5, 5]  # 20 − 17 and 16 − 14 slots
    assert right["slot"] == 25  # block 6, offset 1
    assert right["computed"] == 17  # one block of 4 is hit


def test_an_attribute_of_another_type_is_named():
    def answer(pool, name, count):
        pool.free = None

    inputs = cases.allocate_table(Random(0), 0)
    with pytest.raises(WrongUse, match=r"a list in pool\.free, but None was given"):
        student.on_pool(answer, inputs)


def test_a_key_error_for_a_sequence_with_a_table_is_an_error():
    with pytest.raises(KeyError):
        student.free(lambda pool, name: {}[name], cases.free_alone(Random(0), 0))
