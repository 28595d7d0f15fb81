"""`paged-attention`: its model answers do what the engine does."""

from random import Random
from types import SimpleNamespace

import pytest

from course_pkg.grading.check import variant
from course_pkg.grading.checks.paged_attention import cases, student
from course_pkg.grading.contract.calling import WrongUse
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.sequence import Sequence
from tests.exercises.assignments import model_answers

NAME = "paged-attention"
MODEL = model_answers(NAME)


def renamed(tables):
    """Tables with blocks numbered in the order in which they appear."""
    numbers = {}
    return [[numbers.setdefault(block, len(numbers)) for block in table] for table in tables]


def test_model_answers_do_what_the_block_manager_of_the_engine_does():
    rng = Random(0)
    size = 3
    manager = BlockManager(14, size, prefix_cache=False)
    live = {}
    pool = SimpleNamespace(
        block_size=size, free=list(range(1, 15)), users=[0] * 15, tables={}, tokens={}
    )
    for step in range(500):
        action = rng.choice(["allocate", "append", "append", "fork", "free"])
        if action == "allocate":
            one = Sequence(str(step), [0] * rng.randint(1, 9))
            possible = manager.can_allocate(one)
            assert MODEL["allocate"](pool, one.id, len(one.tokens)) == possible
            if possible:
                live[one.id] = one
                manager.allocate(one)
        elif live:
            one = live[rng.choice(list(live))]
            if action == "free":
                manager.free(live.pop(one.id))
                MODEL["free"](pool, one.id)
            elif action == "fork":
                live[str(step)] = one.copy(str(step))
                manager.fork(one, live[str(step)])
                MODEL["fork"](pool, one.id, str(step))
            elif manager.can_append(one, count := rng.randint(1, 5)):
                start = len(one.tokens)
                one.tokens += [0] * count
                stop = min(start + count, len(pool.tables[one.id]) * size)
                written = start < stop and MODEL["copy_on_write"](pool, one.id, start, stop)
                assert len(written or []) == (manager.append(one, count) is not None)
                assert MODEL["append"](pool, one.id, count)
        assert pool.tokens == {name: manager.stored(one) for name, one in live.items()}
        tables = renamed(manager.table(one) for one in live.values())
        assert renamed(pool.tables[name] for name in live) == tables
        assert len(pool.free) == manager.pool.num_free


def test_model_answers_hit_what_the_prefix_cache_of_the_engine_hits():
    rng = Random(0)
    size = 2
    lengths = set()
    manager = BlockManager(400, size)
    cached = {}
    for number in range(60):
        tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 9))]
        adapter = rng.choice("xy")
        hashes = MODEL["block_hashes"](tokens, size, adapter, student.hash_block)
        hits = MODEL["find_hits"](tokens, size, hashes, cached)
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
