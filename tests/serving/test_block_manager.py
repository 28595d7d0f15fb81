"""Block tables, the prefix cache and copy-on-write: scenarios to the block number, and errors."""

import pytest

from course_pkg.serving import block_manager as module
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.block_pool import BlockPool, Content, OutOfBlocksError, block_hash
from course_pkg.serving.sequence import Sequence
from tests.refusals import require_refusals
from tests.tables import each_row


def users(manager, *numbers):
    return [manager.pool.blocks[number - 1].users for number in numbers]


def hashed(manager, *numbers):
    return [manager.pool.blocks[number - 1].content is not None for number in numbers]


def grow(manager, sequence, *tokens):
    sequence.tokens += tokens
    return manager.append(sequence, len(tokens))


def test_a_shared_prefix_is_hit_while_its_sequence_lives_and_after():
    manager = BlockManager(10, 16)
    first = Sequence("first", list(range(55)))
    assert manager.allocate(first) == 0
    assert manager.table(first) == [1, 2, 3, 4]
    assert hashed(manager, 1, 2, 3, 4) == [True, True, True, False]  # 4 holds 7 tokens
    second = Sequence("second", [*range(48), *range(100, 107)])
    assert manager.allocate(second) == 48
    assert manager.table(second) == [1, 2, 3, 5]
    assert users(manager, 1, 2, 3, 4, 5) == [2, 2, 2, 1, 1]
    assert manager.pool.num_free == 5
    manager.free(first)
    assert users(manager, 1, 2, 3, 4, 5) == [1, 1, 1, 0, 1]
    manager.free(second)
    assert manager.pool.num_free == 10
    third = Sequence("third", [*range(48), 200])
    assert manager.allocate(third) == 48
    assert manager.table(third)[:3] == [1, 2, 3]
    manager.free(third)
    fresh = Sequence("fresh", list(range(1000, 1160)))
    assert manager.allocate(fresh) == 0
    assert sorted(manager.table(fresh)) == list(range(1, 11))
    assert manager.pool.num_free == 0


def test_tokens_that_fit_take_no_block_and_a_block_that_fills_gets_a_hash():
    manager = BlockManager(10, 16)
    sequence = Sequence("a", list(range(55)))
    manager.allocate(sequence)
    assert grow(manager, sequence, *range(4)) is None  # 59 of 64
    assert manager.table(sequence) == [1, 2, 3, 4] and hashed(manager, 4) == [False]
    assert grow(manager, sequence, *range(19)) is None  # 78 = 4 · 16 + 14
    assert manager.table(sequence) == [1, 2, 3, 4, 5] and hashed(manager, 4, 5) == [True, False]
    # The block's hash covers generated tokens too: a prompt that repeats them hits it.
    again = Sequence("b", sequence.tokens[:65])
    assert manager.allocate(again) == 64


def test_a_request_for_prompt_log_probabilities_takes_no_hits():
    manager = BlockManager(10, 16)
    manager.allocate(Sequence("a", list(range(55))))
    sequence = Sequence("b", list(range(55)), prompt_logprobs=True)
    assert manager.allocate(sequence) == 0
    assert manager.table(sequence) == [5, 6, 7, 8]
    assert hashed(manager, 5, 6, 7, 8) == [False] * 4  # blocks 1, 2, 3 have these hashes
    # Once it has a new token, it has the logits of its prompt: after a preemption it takes hits.
    manager.free(sequence)
    sequence.add(7)
    assert manager.allocate(sequence) == 48


def test_a_fork_that_is_appended_to_copies_one_block():
    manager = BlockManager(4, 4)
    parent = Sequence("parent", [1, 2, 3])
    manager.allocate(parent)
    child = parent.copy("child")
    manager.fork(parent, child)
    assert manager.table(child) == manager.table(parent) == [1] and users(manager, 1) == [2]
    assert grow(manager, child, 4) == (1, 2)
    assert manager.table(child) == [2] and manager.table(parent) == [1]
    assert users(manager, 1, 2) == [1, 1]
    assert grow(manager, parent, 5) is None  # the parent is alone now: no copy
    assert manager.table(parent) == [1]
    # The two blocks are full, of different tokens: both are found.
    assert manager.allocate(Sequence("c", [1, 2, 3, 4, 0])) == 4
    assert manager.allocate(Sequence("d", [1, 2, 3, 5, 0])) == 4


@each_row(("length", "hit"), [(31, 16), (32, 16), (33, 32), (16, 0), (17, 16)])
def test_a_prompt_that_is_cached_as_a_whole_still_computes_its_last_token(length, hit):
    manager = BlockManager(10, 16)
    manager.allocate(Sequence("a", list(range(48))))
    assert manager.allocate(Sequence("b", list(range(length)))) == hit


@pytest.mark.parametrize(
    ("prompt", "key", "salt", "hit"),
    [
        ([1, 2, 3, 4, 9], "poet", "x", 4),
        ([1, 2, 3, 5, 9], "poet", "x", 0),
        ([5, 6, 7, 8, 9], "poet", "x", 0),  # equal tokens after others
        ([0, 2, 3, 4, 5, 6, 7, 8, 9], "poet", "x", 0),
        ([1, 2, 3, 4, 9], "law", "x", 0),
        ([1, 2, 3, 4, 9], "poet", "y", 0),
        ([1, 2, 3, 4, 9], "", "poetx", 0),
        ([1, 2, 3, 4, 9], "poet", None, 0),
    ],
)
def test_only_equal_tokens_after_equal_ones_under_equal_keys_are_a_hit(
    monkeypatch, prompt, key, salt, hit
):
    monkeypatch.setattr(module, "block_hash", lambda parent, tokens: bytes(tokens))  # collides
    manager = BlockManager(10, 4)
    manager.allocate(Sequence("a", list(range(1, 9)), cache_key="poet", cache_salt="x"))
    assert manager.allocate(Sequence("b", prompt, cache_key=key, cache_salt=salt)) == hit


def test_a_block_is_hit_after_its_beginning_was_evicted_and_computed_again():
    manager = BlockManager(4, 2)
    prompt = [1, 2, 3, 4, 5]
    manager.allocate(Sequence("a", prompt))
    head = manager.pool.blocks[0]
    manager.pool._forget(head)
    manager.allocate(Sequence("b", prompt[:2]))
    again = Sequence("c", prompt)
    assert manager._hits(again) == [manager.pool.blocks[3], manager.pool.blocks[1]]


def test_a_long_hit_compares_each_block_once(monkeypatch):
    """Otherwise the lookup of a long prompt would be quadratic."""
    compared = []

    class Counted(tuple):
        __slots__ = ()

        def __ne__(self, other):
            compared.append(1)
            return tuple.__ne__(self, other)

    def content(hash, parent, tokens):
        return Content(hash, parent, Counted(tokens))

    monkeypatch.setattr(module, "Content", content)
    manager = BlockManager(1000, 1)
    manager.allocate(Sequence("a", [0] * 400))
    compared.clear()
    assert manager.allocate(Sequence("b", [0] * 400)) == 399
    assert len(compared) <= 2 * 400


def test_nothing_is_hit_without_a_prefix_cache_or_after_it_was_forgotten():
    for cached in (False, True):
        manager = BlockManager(10, 4, prefix_cache=cached)
        first = Sequence("a", [1, 2, 3, 4, 5])
        manager.allocate(first)
        assert hashed(manager, 1) == [cached]
        manager.forget_cache()
        assert manager.allocate(Sequence("b", [1, 2, 3, 4, 5])) == 0
        assert manager.table(first) == [1, 2]  # a running sequence keeps its blocks


def test_the_least_recently_used_is_evicted_first_tails_before_heads_and_empty_ones_first():
    manager = BlockManager(4, 4)
    old = Sequence("old", list(range(8)))
    new = Sequence("new", list(range(50, 58)))
    manager.allocate(old)
    manager.allocate(new)
    manager.free(old)
    manager.free(new)  # free, the first to be evicted first: 2, 1, 4, 3
    other = Sequence("other", [9])
    manager.allocate(other)
    assert manager.table(other) == [2]  # the tail of `old`; its head can still be hit
    again = Sequence("again", [*range(8), 9])
    assert manager.allocate(again) == 4
    assert manager.table(again) == [1, 4, 3]
    manager = BlockManager(3, 4)
    sequence = Sequence("a", list(range(6)))  # block 1 is full, block 2 is not
    manager.allocate(sequence)
    manager.free(sequence)
    other = Sequence("b", [7] * 6)
    manager.allocate(other)
    assert manager.table(other) == [2, 3] and hashed(manager, 1) == [True]


def test_a_hit_on_a_free_block_uses_up_a_free_block():
    manager = BlockManager(4, 4)
    first = Sequence("a", list(range(8)))
    manager.allocate(first)
    manager.free(first)
    manager.allocate(Sequence("b", [9] * 8))  # two blocks are left: those of `first`
    long = Sequence("c", [*range(8), 10])  # two hits, and one block more
    assert not manager.can_allocate(long)
    with pytest.raises(OutOfBlocksError, match="1 blocks are lacking for 9 tokens of sequence 'c'"):
        manager.allocate(long)
    assert manager.pool.num_free == 2 and manager.stored(long) == 0
    assert manager.can_allocate(Sequence("d", list(range(8))))  # one hit, and the last block


def test_the_watermark_keeps_blocks_free_when_a_sequence_is_admitted():
    manager = BlockManager(10, 4, watermark=0.2)
    sequence = Sequence("a", [1] * 33)  # 9 blocks
    assert not manager.can_allocate(sequence)
    assert manager.can_allocate(sequence, keep_reserve=False)
    assert manager.can_allocate(Sequence("b", [1] * 32))  # 8 blocks
    manager.allocate(sequence)
    assert manager.can_append(sequence, 3)  # those that run may use the reserve
    sequence.tokens += [1] * 4
    assert manager.can_append(sequence, 7) and not manager.can_append(sequence, 8)


def test_a_prompt_in_chunks_has_only_the_blocks_slots_and_hashes_of_its_chunks():
    manager = BlockManager(10, 4)
    long = Sequence("a", list(range(11)))
    assert manager.allocate(long, upto=0) == 0 and manager.table(long) == []
    manager.append(long, 6)
    assert manager.table(long) == [1, 2] and manager.stored(long) == 6
    # The second block is not computed to its end, so another prompt cannot use it.
    assert manager.allocate(Sequence("b", list(range(10)))) == 4
    manager.append(long, 5)
    assert manager.table(long) == [1, 2, 5]
    assert manager.allocate(Sequence("c", list(range(10)))) == 8
    manager = BlockManager(10, 4)
    filler = Sequence("a", [1])
    sequence = Sequence("b", [2] * 6)
    manager.allocate(filler)
    manager.allocate(sequence)  # blocks 2 and 3
    assert manager.slots(sequence, 2, 4) == [10, 11, 12, 13]
    assert manager.empty_slots() == 3 + 2
    manager.free(filler)
    manager.fork(sequence, sequence.copy("c"))  # a shared block counts once
    assert manager.empty_slots() == 2


def test_appending_beyond_the_tokens_or_blocks_and_what_was_freed_or_never_allocated():
    manager = BlockManager(2, 4)
    sequence = Sequence("a", [1, 2, 3])
    manager.allocate(sequence)
    with pytest.raises(ValueError, match="has 3 tokens and room for 3, so it cannot append 1: add"):
        manager.append(sequence, 1)
    sequence.tokens += [4] * 6
    with pytest.raises(OutOfBlocksError, match="needs 2 more blocks, and 1 of 2 are free: preempt"):
        manager.append(sequence, 6)
    assert manager.table(sequence) == [1] and manager.stored(sequence) == 3
    manager = BlockManager(4, 4)
    sequence = Sequence("a", [1, 2, 3])
    with pytest.raises(ValueError, match="sequence 'a' has no blocks: it was freed, or never"):
        manager.free(sequence)
    manager.allocate(sequence)
    with pytest.raises(ValueError, match="sequence 'a' has blocks already: free it first"):
        manager.allocate(sequence)
    manager.free(sequence)
    for action in (manager.free, manager.table, lambda s: manager.append(s, 0)):
        with pytest.raises(ValueError, match="it was freed, or never allocated"):
            action(sequence)
    assert manager.pool.num_free == 4


def test_forks_that_lack_a_block_or_are_not_the_parents():
    manager = BlockManager(1, 4)
    parent = Sequence("a", [1, 2])
    manager.allocate(parent)
    for child in (Sequence("b", [1, 3]), parent):
        message = (
            f"'{child.id}' cannot be forked from 'a': it must be new and begin with the same 2"
        )
        with pytest.raises(ValueError, match=message):
            manager.fork(parent, child)
    child = parent.copy("b")
    manager.fork(parent, child)
    child.tokens.append(3)
    assert not manager.can_append(child, 1) and manager.can_append(child, 0)  # a copy needs one
    manager.free(parent)
    assert manager.can_append(child, 1)


def test_a_pool_by_hand():
    pool = BlockPool(1)
    root = Content(b"parent", None, ("", None))
    other = Content(b"parent", None, ("poet", None))
    block = pool.take()
    with pytest.raises(OutOfBlocksError, match="all 1 blocks are in use"):
        pool.take()
    pool.remember(block, Content(b"hash", root, (1, 2)))
    assert pool.find(Content(b"hash", root, (1, 2))) is block
    others = [(b"hash", other, (1, 2)), (b"hash", root, (1, 3)), (b"hash", None, (1, 2))]
    assert [pool.find(Content(*content)) for content in [*others, (b"x", root, (1, 2))]] == [
        None
    ] * 4
    pool.release(block)
    with pytest.raises(RuntimeError, match="block 1 is freed twice"):
        pool.release(block)
    assert hash((-1,)) == hash((-2,)) and block_hash(b"", [-1]) != block_hash(b"", [-2])


def test_sizes_that_make_no_sense():
    require_refusals(
        (lambda: BlockManager(0, 4), "blocks must be an integer of at least 1, got 0"),
        (lambda: BlockManager(4, 0), "block_size must be an integer of at least 1, got 0"),
        (lambda: BlockManager(4, 4, watermark=1.0), "watermark must be at least 0 and below 1"),
        (lambda: Sequence("a", [], 1), "has 0 prompt tokens and max_new_tokens 1: give at least 1"),
        (lambda: Sequence("a", [1], 0), "has 1 prompt tokens and max_new_tokens 0: give at least"),
    )
