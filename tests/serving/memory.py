"""A memory of slots that does what an engine does, but stores what each token stands for.

The value of a slot is the cache key, the salt and all tokens up to the slot's own, which is what
real keys and values depend on, and who may share them. So a wrong table, a hit on another text, a
missing copy or an overwritten block shows as a wrong value.
"""

from itertools import pairwise


class Memory:
    def __init__(self, manager):
        self.manager = manager
        self.slots = {}
        self.host = {}

    def copy(self, source, target, pairs):
        size = self.manager.block_size
        for here, there in pairs:
            for offset in range(size):
                target[there * size + offset] = source.get(here * size + offset)

    def write(self, sequence, start, count):
        for t, slot in enumerate(self.manager.slots(sequence, start, count), start):
            self.slots[slot] = self.value(sequence, t)

    def value(self, sequence, t):
        return sequence.cache_key, sequence.cache_salt, tuple(sequence.tokens[: t + 1])

    def check(self, sequence):
        """A query of the sequence reads its own tokens, and nothing else."""
        stored = self.manager.stored(sequence)
        slots = self.manager.slots(sequence, 0, stored)
        expected = [self.value(sequence, t) for t in range(stored)]
        assert [self.slots.get(slot) for slot in slots] == expected, sequence.id

    def run(self, step):
        """What an engine does with a step of the scheduler: all copies, all writes, all reads."""
        self.copy(self.slots, self.host, step.swap_out)
        self.copy(self.host, self.slots, step.swap_in)
        self.copy(self.slots, self.slots, step.copies)
        for sequence, tokens in step.scheduled.items():
            self.write(sequence, tokens.start, len(tokens))
        for sequence, tokens in step.scheduled.items():
            assert self.manager.stored(sequence) == tokens.stop
            self.check(sequence)


def check_pool(manager, sequences):
    """Blocks are conserved: each is free or in the tables of as many sequences as it has users."""
    pool = manager.pool
    size = manager.block_size
    tables = [manager.table(sequence) for sequence in sequences]
    used = [number for table in tables for number in table]
    assert [used.count(block.number) for block in pool.blocks] == [b.users for b in pool.blocks]
    assert pool.num_free == len(pool.blocks) - len(set(used))
    assert len(pool._cached) == sum(block.content is not None for block in pool.blocks)
    for sequence, table in zip(sequences, tables, strict=True):
        assert len(table) == manager.blocks_for(manager.stored(sequence)) == len(set(table))
    by_number = {block.number: block for block in pool.blocks}
    for sequence, table in zip(sequences, tables, strict=True):
        for index, number in enumerate(table):  # shared or cached blocks have the right tokens
            content = by_number[number].content
            full = (index + 1) * size <= manager.stored(sequence)
            assert content is None or full
            if content is not None:
                tokens = sequence.tokens[index * size : (index + 1) * size]
                assert content.tokens == tuple(tokens)


def check_cache(manager, memory):
    """Each hash points at a block whose slots hold the tokens that were hashed."""
    size = manager.block_size
    for block in manager.pool.blocks:
        if block.content is not None:
            slots = range(block.number * size, (block.number + 1) * size)
            held = [memory.slots[slot] for slot in slots]
            assert all(longer[-1][:-1] == shorter[-1] for shorter, longer in pairwise(held))
            assert held[-1][-1][-size:] == block.content.tokens
            assert manager.pool.find(block.content) is block
