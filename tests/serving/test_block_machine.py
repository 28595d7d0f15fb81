"""Random arrivals, forks, appends, frees and swaps against a model: what each slot must hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from course_pkg.serving import block_manager as module
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.block_pool import block_hash
from course_pkg.serving.sequence import Sequence
from course_pkg.serving.swap_space import SwapSpace

from .memory import Memory, check_cache, check_pool

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)  # two tokens: prefixes often agree


class Blocks(RuleBasedStateMachine):
    """Every rule that the scheduler could call, in any order that has room for it."""

    @initialize(
        blocks=st.integers(2, 12), size=st.integers(1, 4), cached=st.booleans(), weak=st.booleans()
    )
    def start(self, blocks, size, cached, weak):
        # A weak hash: equal tokens have the same one after all prefixes and under all adapters.
        module.block_hash = (lambda parent, tokens: bytes(tokens)) if weak else block_hash
        self.manager = BlockManager(blocks, size, prefix_cache=cached)
        self.space = SwapSpace(self.manager, 6)
        self.memory = Memory(self.manager)
        self.here, self.swapped, self.waiting = [], [], []
        self.count = 0

    def teardown(self):
        module.block_hash = block_hash

    def pick(self, data, sequences):
        return data.draw(st.sampled_from(sequences))

    def name(self):
        self.count += 1
        return str(self.count)

    def grow(self, sequence, count):
        start = self.manager.stored(sequence)
        copies = self.manager.append(sequence, count)
        assert len(copies) <= 1
        self.memory.copy(self.memory.slots, self.memory.slots, copies)
        self.memory.write(sequence, start, count)

    @rule(prompt=TOKENS, key=st.sampled_from(["", "adapter"]), logprobs=st.booleans())
    def arrive(self, prompt, key, logprobs):
        sequence = Sequence(self.name(), prompt, cache_key=key, prompt_logprobs=logprobs)
        self.waiting.append(sequence)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), part=st.integers(0, 14))
    def admit(self, data, part):
        sequence = self.pick(data, self.waiting)
        if self.manager.can_allocate(sequence):
            hit = self.manager.allocate(sequence, min(part, len(sequence.tokens)))
            assert hit < len(sequence.tokens) and hit % self.manager.block_size == 0
            assert hit == 0 or (self.manager.prefix_cache and sequence.takes_hits)
            stored = self.manager.stored(sequence)
            self.memory.write(sequence, hit, stored - hit)
            self.waiting.remove(sequence)
            self.here.append(sequence)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), tokens=TOKENS)
    def append(self, data, tokens):
        sequence = self.pick(data, self.here)
        if len(sequence.tokens) < 20:
            sequence.tokens += tokens
        count = data.draw(st.integers(0, len(sequence.tokens) - self.manager.stored(sequence)))
        if self.manager.can_append(sequence, count):
            self.grow(sequence, count)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def fork(self, data):
        parent = self.pick(data, self.here)
        child = parent.copy(self.name())
        self.manager.fork(parent, child)
        self.here.append(child)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), again=st.booleans())
    def free(self, data, again):
        """A sequence ends, is aborted, or is preempted and comes again."""
        sequence = self.pick(data, self.here)
        self.manager.free(sequence)
        self.here.remove(sequence)
        if again:
            self.waiting.append(sequence)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def swap_out(self, data):
        sequence = self.pick(data, self.here)
        if self.space.has_room(sequence):
            pairs = self.space.swap_out(sequence)
            self.memory.copy(self.memory.slots, self.memory.host, pairs)
            self.here.remove(sequence)
            self.swapped.append(sequence)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data(), drop=st.booleans())
    def swap_in(self, data, drop):
        sequence = self.pick(data, self.swapped)
        if drop:
            self.space.drop(sequence)
        elif self.manager.can_allocate(sequence):
            pairs = self.space.swap_in(sequence)
            self.memory.copy(self.memory.host, self.memory.slots, pairs)
            self.here.append(sequence)
        else:
            return
        self.swapped.remove(sequence)

    @rule()
    def forget(self):
        self.manager.forget_cache()
        assert self.manager.pool.cached == 0

    @invariant()
    def all_is_in_order(self):
        if hasattr(self, "manager"):
            check_pool(self.manager, self.here)
            check_cache(self.manager, self.memory)
            for sequence in self.here:
                self.memory.check(sequence)
            for sequence in self.swapped + self.waiting:
                assert self.manager.stored(sequence) == 0
            if not self.swapped:
                assert self.space.pool.free == 6


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
