"""The scheduler's steps by hand: budget, chunks, preemption, order, forks, and errors."""

import pytest

from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.scheduler import Scheduler, Step, SwapSpace
from course_pkg.serving.sequence import Sequence
from tests.refusals import require_refusals

from .memory import Memory


def scheduler(blocks=20, size=4, budget=16, most=4, swap=0, watermark=0.0, **options):
    manager = BlockManager(blocks, size, watermark=watermark)
    return Scheduler(manager, budget, most, swap_blocks=swap, **options)


def add(queue, *sequences):
    for sequence in sequences:
        queue.add(sequence)
    return sequences


def fresh(id, length, new=10, **options):
    return Sequence(id, [ord(id[0]) * 1000 + i for i in range(length)], new, **options)


def plan(step):
    return [(s.id, tokens.start, len(tokens)) for s, tokens in step.scheduled.items()]


def run(queue, token=1, memory=None):
    """One step with the same new token for all; what was scheduled."""
    step = queue.schedule()
    if memory is not None:
        memory.run(step)
    queue.update(step, {sequence.id: token for sequence in step.sampling})
    return plan(step)


def test_the_second_of_two_waits_when_the_first_needs_its_block():
    queue = scheduler(blocks=2, size=4, budget=8, most=2)
    memory = Memory(queue.block_manager)
    first, second = add(queue, fresh("first", 4, new=2), fresh("second", 4, new=3))
    step = queue.schedule()
    assert plan(step) == [("first", 0, 4), ("second", 0, 4)] and step.tokens == 8
    memory.run(step)
    queue.update(step, {"first": 7, "second": 8})
    step = queue.schedule()
    assert plan(step) == [("first", 4, 1)] and step.preempted == [second]
    assert queue.block_manager.table(first) == [1, 2]
    memory.run(step)
    assert queue.update(step, {"first": 9}) == [first] and first.new_tokens == [7, 9]
    assert run(queue, memory=memory) == [("second", 0, 5)]  # the prompt, and what it generated
    assert second.new_tokens == [8, 1] and second.preemptions == queue.preemptions == 1
    assert run(queue, memory=memory) == [("second", 5, 1)]
    assert second.finish_reason == "length" and not queue.has_work
    assert queue.block_manager.pool.num_free == 2


def test_with_swap_space_the_second_keeps_what_it_computed():
    queue = scheduler(blocks=2, size=4, budget=8, most=2, swap=2)
    memory = Memory(queue.block_manager)
    _, second = add(queue, fresh("first", 4, new=2), fresh("second", 4, new=3))
    run(queue, memory=memory)
    step = queue.schedule()
    assert step.preempted == [second] and step.swap_out == [(2, 1)]
    memory.run(step)
    queue.update(step, {"first": 9})
    step = queue.schedule()
    assert plan(step) == [("second", 4, 1)] and step.swap_in == [
        (1, queue.block_manager.table(second)[0])
    ]
    memory.run(step)


def test_prompts_and_generation_share_a_step_and_its_budget():
    queue = scheduler(budget=8, most=4)
    add(queue, fresh("a", 5), fresh("b", 10))
    assert run(queue) == [("a", 0, 5), ("b", 0, 3)]
    add(queue, fresh("c", 2))
    assert run(queue) == [("a", 5, 1), ("b", 3, 7)]
    assert run(queue) == [("a", 6, 1), ("b", 10, 1), ("c", 0, 2)]
    assert run(queue) == [("a", 7, 1), ("b", 11, 1), ("c", 2, 1)]


def test_a_long_prompt_that_is_first_leaves_a_token_for_each_that_runs():
    queue = scheduler(blocks=40, budget=10, most=3)
    add(queue, fresh("b", 2), fresh("c", 2))
    run(queue)
    add(queue, fresh("a", 50, priority=-1))  # it is computed over several steps, first in order
    assert run(queue) == [("b", 2, 1), ("c", 2, 1), ("a", 0, 8)]
    assert run(queue) == [("a", 8, 8), ("b", 3, 1), ("c", 3, 1)]


def test_the_watermark_delays_the_second_and_the_first_in_the_queue_is_not_overtaken():
    queue = scheduler(blocks=4, watermark=0.5)
    add(queue, fresh("a", 9, new=2), fresh("b", 4, new=2))
    assert [id for id, *_ in run(queue)] == ["a"]  # 3 blocks of 4, although 2 are reserved
    assert [id for id, *_ in run(queue)] == ["a"]
    assert [id for id, *_ in run(queue)] == ["b"]
    queue = scheduler(blocks=4, most=2)
    add(queue, fresh("a", 8, new=2), fresh("b", 12, new=2), fresh("c", 1, new=2), fresh("d", 1))
    # Blocks lack for b, and later slots for d.
    assert [[id for id, *_ in run(queue)] for _ in range(3)] == [["a"], ["a"], ["b", "c"]]


def test_urgent_ones_come_first_for_so_many_steps_and_the_least_urgent_is_preempted():
    queue = scheduler(blocks=3, size=4, most=3)
    low = fresh("l", 4, 5, priority=2)
    middle = fresh("m", 4, 5, priority=1)
    add(queue, low, middle, fresh("h", 4, 5))
    assert [id for id, *_ in run(queue)] == ["h", "m", "l"]
    step = queue.schedule()
    assert plan(step) == [("h", 4, 1)]
    assert step.preempted == [low, middle] and queue.waiting == [middle, low]
    queue = scheduler(most=1, aging=3)
    add(queue, fresh("low", 1, new=1, priority=1))
    for steps, id in enumerate(["a", "b", "c", "d", "e"]):
        queue.steps = steps
        add(queue, fresh(id, 1, new=1))
    # It stands as if it came in step 3.
    assert [s.id for s in queue.waiting] == ["a", "b", "c", "low", "d", "e"]


def test_a_preempted_one_hits_its_own_blocks_if_nobody_took_them():
    queue = scheduler(blocks=5, size=4, most=2)
    first, second = add(queue, fresh("a", 4, new=6), fresh("b", 12, new=4))
    run(queue)  # blocks 1, and 2, 3, 4
    step = queue.schedule()  # a takes block 5; b needs one, and is the last: it preempts itself
    assert plan(step) == [("a", 4, 1)] and step.preempted == [second]
    queue.update(step, {"a": 1})
    for start in (5, 6, 7, 8):  # for token 8, a takes the last of b's blocks, which are 4, 3, 2
        assert run(queue) == [("a", start, 1)]
    assert first.finish_reason == "length"
    assert run(queue) == [("b", 8, 5)] and second.hit_tokens == 0  # nobody else's


def test_samples_of_a_prompt_share_it_its_place_in_the_order_and_copy_its_last_block():
    queue = scheduler(size=4)
    memory = Memory(queue.block_manager)
    (parent,) = add(queue, fresh("a", 6, new=3, stop=frozenset({4})))
    step = queue.schedule()
    memory.run(step)
    children = [queue.fork(parent, id, token) for id, token in (("b", 8), ("c", 9))]
    assert queue.fork(parent, "d", 4).finish_reason == "stop"  # it ends with its first token
    queue.update(step, {"a": 7})
    step = queue.schedule()
    assert plan(step) == [("a", 6, 1), ("b", 6, 1), ("c", 6, 1)]
    assert step.copies == [(2, 3), (2, 4)]  # c writes into the original
    assert [queue.block_manager.table(s) for s in (parent, *children)] == [[1, 3], [1, 4], [1, 2]]
    memory.run(step)
    queue.update(step, {id: 1 for id in "abc"})
    run(queue, memory=memory)
    assert [s.new_tokens for s in (parent, *children)] == [[7, 1, 1], [8, 1, 1], [9, 1, 1]]
    assert not queue.has_work and queue.block_manager.pool.num_free == 20
    queue = scheduler()
    parent, other = add(queue, fresh("a", 3, priority=1), fresh("b", 3, priority=1))
    (urgent,) = add(queue, fresh("c", 3))
    step = queue.schedule()
    child = queue.fork(parent, "d", 8)
    assert queue.running == [urgent, parent, other, child]
    queue.update(step, {"a": 7, "b": 7, "c": 7})


def test_a_sequence_that_is_aborted_during_a_step_needs_no_token():
    queue = scheduler()
    first, second, third = add(queue, *(fresh(id, 4) for id in "abc"))
    step = queue.schedule()
    queue.abort("a")
    queue.abort("b")
    assert queue.update(step, {"b": 1, "c": 2}) == []  # a token for it is ignored
    assert [s.new_tokens for s in (first, second, third)] == [[], [], [2]]
    assert first.finish_reason == "abort"


def test_a_step_that_could_not_be_computed_ends_what_ran_and_nothing_else():
    queue = scheduler(blocks=4, size=4, most=2, swap=4)
    memory = Memory(queue.block_manager)
    first, second, third = add(
        queue, *(fresh(*sizes) for sizes in (("a", 8, 9), ("b", 8, 9), ("c", 4, 2)))
    )
    run(queue, memory=memory)
    step = queue.schedule()
    assert step.preempted == [second] and second in queue.swap_space
    assert queue.fail() == [first] and first.finish_reason == "abort"
    assert queue.block_manager.pool.num_free == 4
    assert second not in queue.swap_space  # the copy to the host may not have been made
    assert run(queue, memory=memory) == [("b", 0, 9), ("c", 0, 4)]
    assert third.new_tokens == [1]


def test_sequences_that_are_refused():
    queue = scheduler(blocks=2, size=4)
    (sequence,) = add(queue, fresh("a", 4, new=5))  # the ninth token is not stored
    message = "'b' has a prompt of 4 tokens and max_new_tokens 6: that is up to 3 blocks of 4, and"
    with pytest.raises(ValueError, match=f"{message} there are 2; shorten it, or give"):
        queue.add(fresh("b", 4, new=6))
    with pytest.raises(ValueError, match="'a' is running, waiting or finished: give a new one"):
        queue.add(fresh("a", 3, new=1))
    assert queue.waiting == [sequence]
    while queue.has_work:
        run(queue)
    with pytest.raises(ValueError, match="'a' is running, waiting or finished"):
        queue.add(sequence)
    add(queue, fresh("a", 3, new=1))  # the id is free again


def test_steps_and_updates_alternate_and_forks_come_after_a_sample():
    queue = scheduler()
    with pytest.raises(ValueError, match="not the step that schedule"):
        queue.update(Step(), {})
    (sequence,) = add(queue, fresh("a", 4))
    step = queue.schedule()
    with pytest.raises(RuntimeError, match=r"call update\(step, tokens\) first"):
        queue.schedule()
    for tokens in ({}, {"a": 1, "b": 1}):
        with pytest.raises(ValueError, match=r"expected one for each .* \['a'\]"):
            queue.update(step, tokens)
    assert sequence.new_tokens == []
    queue.update(step, {"a": 1})
    with pytest.raises(ValueError, match="not the step that schedule"):
        queue.update(step, {"a": 1})
    queue = scheduler(budget=4)
    (parent,) = add(queue, fresh("a", 6))
    with pytest.raises(ValueError, match="'a' cannot be forked now: fork it after a step in which"):
        queue.fork(parent, "b", 1)
    step = queue.schedule()  # the first chunk, which samples nothing
    with pytest.raises(ValueError, match="cannot be forked now"):
        queue.fork(parent, "b", 1)
    queue.update(step, {})
    step = queue.schedule()
    queue.abort("a")
    with pytest.raises(ValueError, match="cannot be forked now"):
        queue.fork(parent, "b", 1)


def test_numbers_that_make_no_sense():
    require_refusals(
        ({"most": 0}, "max_sequences must be an integer of at least 1, got 0"),
        ({"budget": 3, "most": 4}, "token_budget must be an integer of at least 4, got 3"),
        ({"aging": -1}, "aging must be an integer of at least 0, got -1"),
        ({"swap": -1}, "blocks must be an integer of at least 0, got -1"),
        of=lambda numbers: scheduler(**numbers),
    )


def test_swap_space_errors():
    manager = BlockManager(4, 4)
    space = SwapSpace(manager, 1)
    sequence = fresh("a", 8)
    manager.allocate(sequence)
    with pytest.raises(RuntimeError, match="'a' has 2 blocks, and 1 of 1 on the host are free"):
        space.swap_out(sequence)
    for action in (space.swap_in, space.drop):
        with pytest.raises(ValueError, match="sequence 'a' is not swapped out"):
            action(sequence)
