"""Random requests, forks and aborts: every output is as if its request were alone; nobody starves.

The "model" is a rule for the next token from all tokens so far. Each step runs on a memory that
stores what each slot stands for, so a read of a wrong slot fails at once.
"""

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from course_pkg.serving import block_manager as module
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.block_pool import block_hash
from course_pkg.serving.scheduler import Scheduler
from course_pkg.serving.sequence import Sequence

from .memory import Memory, check_cache, check_pool

STOP = 2


def next_token(tokens):
    return sum(i * token for i, token in enumerate(tokens, 1)) % 11 % 3


def alone(sequence, new):
    """The tokens that the sequence generates by itself, after `new`."""
    tokens = [*sequence.prompt, *new]
    while len(tokens) < len(sequence.prompt) + sequence.max_new_tokens and tokens[-1] != STOP:
        tokens.append(next_token(tokens))
    return tokens[len(sequence.prompt) :]


class Serving(RuleBasedStateMachine):
    """What an engine does with a scheduler, at random."""

    @initialize(
        blocks=st.integers(3, 12),
        size=st.integers(1, 4),
        most=st.integers(1, 4),
        spare=st.integers(0, 6),
        swap=st.integers(0, 5),
        watermark=st.sampled_from([0.0, 0.3]),
        cached=st.booleans(),
        weak=st.booleans(),
    )
    def start(self, blocks, size, most, spare, swap, watermark, cached, weak):
        # A weak hash: equal tokens have the same one after all prefixes and under all adapters.
        module.block_hash = (lambda parent, tokens: bytes(tokens)) if weak else block_hash
        manager = BlockManager(blocks, size, prefix_cache=cached, watermark=watermark)
        self.memory = Memory(manager)
        self.queue = Scheduler(manager, most + spare, most, swap_blocks=swap, aging=5)
        self.capacity = blocks * size
        self.alive = {}
        self.expected = {}
        self.ids = count()

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=10),
        new=st.integers(1, 8),
        priority=st.integers(0, 2),
        key=st.sampled_from(["", "adapter"]),
        salt=st.sampled_from([None, "adapter"]),
        logprobs=st.booleans(),
    )
    def arrive(self, prompt, new, key, salt, **options):
        if len(prompt) + new - 1 <= self.capacity:
            options |= {"cache_key": key, "cache_salt": salt}
            options["prompt_logprobs"] = options.pop("logprobs")
            sequence = Sequence(next(self.ids), prompt, new, frozenset({STOP}), **options)
            self.queue.add(sequence)
            self.alive[sequence.id] = sequence
            self.expected[sequence.id] = alone(sequence, [])

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data):
        id = data.draw(st.sampled_from(sorted(self.alive)))
        assert self.queue.abort(id)
        assert not self.queue.abort(id)
        assert self.alive.pop(id).finish_reason == "abort"

    @rule(data=st.data())
    def step(self, data):
        self.one_step(data)

    @rule(computed=st.booleans())
    def fail(self, computed):
        """A step fails before or after it was computed; what runs ends, and nothing else."""
        waiting = list(self.queue.waiting)
        step = self.queue.schedule()
        if computed:
            self.memory.run(step)
        running = list(self.queue.running)
        assert self.queue.fail() == running and set(step.scheduled) == set(running)
        for sequence in running:
            assert self.alive.pop(sequence.id).finish_reason == "abort"
        assert set(self.queue.waiting) == (set(waiting) | set(step.preempted)) - set(running)
        assert not any(block.content for block in self.queue.block_manager.pool.blocks)

    def one_step(self, data=None):
        queue = self.queue
        before = list(self.queue.running)
        step = queue.schedule()
        scheduled = list(step.scheduled)
        assert step.tokens <= queue.token_budget and len(scheduled) <= queue.max_sequences
        # What ran goes on by at least one token or was preempted, the last of the order first.
        assert set(before) == set(scheduled) & set(before) | set(step.preempted)
        assert all(step.scheduled.values())
        assert all(queue.place(s) < queue.place(p) for s in scheduled for p in step.preempted)
        # Nobody overtakes: all that was admitted comes before all that waits.
        admitted = [sequence for sequence in scheduled if sequence not in before]
        assert all(queue.place(a) < queue.place(w) for a in admitted for w in queue.waiting)
        assert not (admitted and step.preempted)
        assert len(step.swap_out) == len(set(step.swap_out))
        self.memory.run(step)
        tokens = {sequence.id: next_token(sequence.tokens) for sequence in step.sampling}
        if data is not None and step.sampling and data.draw(st.booleans()):
            self.fork(data.draw(st.sampled_from(step.sampling)))
        for sequence in queue.update(step, tokens):
            assert sequence.new_tokens == self.expected[sequence.id]
            del self.alive[sequence.id]
        return step

    def fork(self, parent):
        token = 1 - min(1, next_token(parent.tokens))  # not what the parent goes on with
        child = self.queue.fork(parent, next(self.ids), token)
        expected = alone(child, child.new_tokens)
        if child.finish_reason:
            assert child.new_tokens == expected
        else:
            self.alive[child.id] = child
            self.expected[child.id] = expected

    @invariant()
    def blocks_are_conserved(self):
        if hasattr(self, "queue"):
            queue = self.queue
            check_pool(queue.block_manager, queue.running)
            check_cache(queue.block_manager, self.memory)
            assert queue.running == sorted(queue.running, key=queue.place)
            assert set(queue.running) | set(queue.waiting) == set(self.alive.values())

    def teardown(self):
        """All that is left ends, in at most as many steps as there are tokens to compute."""
        module.block_hash = block_hash
        if hasattr(self, "queue"):
            limit = sum(2 * (len(s.prompt) + s.max_new_tokens) ** 2 for s in self.alive.values())
            for _ in range(limit):
                if not self.queue.has_work:
                    break
                assert self.one_step().scheduled
            assert not self.queue.has_work and not self.alive
            assert self.queue.block_manager.pool.num_free == len(
                self.queue.block_manager.pool.blocks
            )
            space = self.queue.swap_space
            assert space.pool.num_free == len(space.pool.blocks)


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def under_load(priority, aging, arrivals, new, steps):
    """In which step the only less urgent request begins and ends, while others keep coming."""
    manager = BlockManager(8, 2)
    queue = Scheduler(manager, token_budget=6, max_sequences=3, aging=aging)
    low = Sequence("low", [1, 2, 3], 4, priority=priority)
    queue.add(low)
    began = None
    for index in range(steps):
        for i in range(arrivals):
            queue.add(Sequence(f"{index}/{i}", [index, i, 0, 0], new))
        step = queue.schedule()
        queue.update(step, {sequence.id: 1 for sequence in step.sampling})
        if began is None and low in queue.running:
            began = index
        if low.finish_reason is not None:
            return began, index
    return began, None


@given(st.integers(0, 3), st.integers(0, 6), st.integers(1, 3), st.integers(1, 6))
@settings(deadline=None, max_examples=40)
def test_under_endless_more_urgent_load_nobody_starves(priority, aging, arrivals, new):
    # The requests that are before it come within its first priority · aging steps. Alone, one takes
    # at most 1 step for its 4 tokens of prompt and `new` more; they can be preempted, and replay.
    before = (priority * aging + 1) * arrivals
    bound = (before + 1) * 2 * (new + 4)
    _, ended = under_load(priority, aging, arrivals, new, steps=bound)
    assert ended is not None


def test_with_strict_priorities_it_does_starve():
    assert under_load(priority=1, aging=10**9, arrivals=2, new=4, steps=300) == (None, None)
