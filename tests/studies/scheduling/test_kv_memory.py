"""KV memory by hand, and what must hold for any workload."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.kv_memory import KVMemory
from course_pkg.studies.scheduling.mlfq import MLFQ, SkipJoinMLFQ
from course_pkg.studies.scheduling.policies import ContinuousBatching, Job
from course_pkg.studies.scheduling.simulation import simulate
from course_pkg.studies.scheduling.workload import SimulatedRequest
from tests.refusals import require_refusals
from tests.tables import each_row

SECOND = CostModel(base=1.0)


def proactive(capacity, bandwidth, reserve):
    return KVMemory(capacity, bandwidth, proactive=True, reserve=reserve)


def served(*rows):
    return [SimulatedRequest(float(arrival), prompt, output) for arrival, prompt, output in rows]


THREE = served((0, 4, 2), (0, 4, 2), (1.5, 4, 1))  # 4 to 6 tokens each
FOUR = served((0, 4, 2), (0, 4, 2), (0, 4, 2), (0, 1, 2))
LARGE = served((0, 6, 3), (0, 5, 1), (0, 1, 1))
TURNS = MLFQ(1, 1.0)


@each_row(
    ("given", "policy", "memory", "finished", "stalled", "swapped"),
    [
        # Room for 7 tokens, 8 of which move per second: A's 4 go out and come back, 0.5 s each.
        (served((0, 4, 2), (0, 4, 1)), MLFQ(1, 1.0), KVMemory(7, 8.0), [4, 2.5], 1.0, 8),
        # At 2, A and B hold 8 of 11 tokens: B goes out until 2.5, when C runs. A runs at 3.5, needs
        # one more token, and there is room. B comes back from 4.5 to 5.
        (THREE, MLFQ(1, 1.0), KVMemory(11, 8.0), [4.5, 6, 3.5], 1.0, 8),
        # While B runs, 3 tokens are free, one less than the reserve: A goes out, so C runs at 2.
        # While C runs, B goes out. At 3, A comes back in 0.5 s, and B from 4.5 to 5.
        (THREE, MLFQ(1, 1.0), proactive(11, 8.0, 4), [4.5, 6, 3], 1.0, 16),
        # C's 4 tokens fill the memory; the reserve sends B out while C runs, and while A runs, B
        # comes back: A needs 5, B 4, and 3 stay free. So nothing waits at all.
        (THREE, MLFQ(1, 1.0), proactive(12, 8.0, 3), [4, 5, 3], 0.0, 8),
        # A slow link: B goes out from 2 to 4, and then comes back until 6.
        (THREE, MLFQ(1, 1.0), proactive(12, 2.0, 3), [4, 7, 3], 2.0, 8),
        # B would be out at 4.5: at 4 it is still there, and stays.
        (THREE, MLFQ(1, 1.0), proactive(12, 1.6, 3), [4, 5, 3], 0.0, 4),
        # C's prompt of 9 needs the room of A and B, which leave one after the other.
        (served((0, 4, 2), (0, 4, 2), (0, 9, 1)), TURNS, KVMemory(12, 8.0), [5.5, 7, 4], 2.0, 16),
        # 4 tokens take 1.25 s. While D runs, C leaves until 4.25: enough, so nobody else does. A
        # ends at 5 and B at 6. C has been on its way since 5, and arrives at 6.25.
        (FOUR, TURNS, proactive(16, 3.2, 4), [5, 6, 7.25, 8.25], 0.25, 8),
        # In 10 tokens, A and B need 4 + 4, 5 + 5, then 6 + 6: B is put aside for two iterations.
        (served((0, 4, 4), (0, 4, 4)), ContinuousBatching(2), KVMemory(10, 10.0), [4.5, 7], 1, 10),
        # B does not fit beside A; C would, but came later.
        (LARGE, ContinuousBatching(3), KVMemory(10, 1.0), [3, 4, 4], 0.0, 0),
    ],
)
def test_transfers_by_hand(given, policy, memory, finished, stalled, swapped):
    result = simulate(given, policy, SECOND, memory=memory)
    assert result.finished.tolist() == finished
    assert (result.stalled, result.swapped) == (stalled, swapped)


def waiting(*jobs):
    """A policy with these jobs, the first of which runs first."""
    return SimpleNamespace(waiting=lambda now: jobs)


def test_a_transfer_starts_when_the_link_is_free_and_the_first_to_run_comes_back_first():
    """4 tokens take 2 s. 8 more are to be free: C leaves at once, and B when C has left."""
    a, b, c = (Job(i, 0.0, 4, 9) for i in range(3))
    memory = KVMemory(16, 2.0, proactive=True, reserve=12)
    policy = waiting(a, b, c)
    memory.gpu = {a: 4, b: 4, c: 4}
    memory.overlap(policy, 0.0, 1.0)
    assert memory.leaving == {c: 2.0}
    memory.overlap(policy, 1.0, 3.0)
    assert memory.leaving == {c: 2.0, b: 4.0}
    a, b = (Job(i, 0.0, 4, 9) for i in range(2))
    memory = KVMemory(16, 2.0, proactive=True, reserve=1)
    policy = waiting(b, a)
    memory.host = {a: 4, b: 4}
    memory.overlap(policy, 0.0, 1.0)
    assert memory.coming == {b: 2.0}
    memory.overlap(policy, 1.0, 3.0)
    assert memory.coming == {b: 2.0, a: 4.0}


@each_row(
    ("way", "start"),
    [("leaving", 3.0), ("coming", 2.0)],  # until it has left; at once, as it is whole on the host
)
def test_room_that_a_transfer_holds_is_taken_without_another(way, start):
    a, b, c = (Job(i, 0.0, 4, 9) for i in range(3))
    memory = KVMemory(10, 2.0, proactive=True)
    policy = waiting(a, b)
    memory.gpu = {a: 4, b: 4}
    getattr(memory, way)[b] = 3.0
    assert memory.admit([(c, 4, 0)], policy, now=2.0) == ([(c, 4, 0)], start)
    assert (memory.gpu, memory.host, memory.moved) == ({a: 4, c: 4}, {b: 4}, 0)


class Checked(KVMemory):
    """It checks itself at each iteration."""

    def admit(self, batch, policy, now):
        batch, start = super().admit(batch, policy, now)
        assert batch and start >= now
        self.check()
        for job, tokens, before in batch:
            assert self.gpu[job] == before + tokens
            assert job not in self.leaving and job not in self.coming
        return batch, start

    def overlap(self, policy, start, end):
        super().overlap(policy, start, end)
        self.check()
        assert not self.running & (self.leaving.keys() | self.host.keys())

    def check(self):
        assert 0 <= self.free <= self.capacity
        assert not self.gpu.keys() & self.host.keys()
        assert self.leaving.keys() | self.coming.keys() <= self.gpu.keys()


REQUESTS = st.lists(
    st.builds(
        SimulatedRequest, st.integers(0, 12).map(float), st.integers(1, 9), st.integers(1, 9)
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 3), st.sampled_from([0.5, 7.0, 1e6]), st.booleans())
def test_memory_holds_what_it_can_and_every_request_finishes(served, size, bandwidth, proactive):
    for policy in (
        ContinuousBatching(size),
        ContinuousBatching(size, token_budget=size + 2),
        MLFQ(size, 1.0, starvation=6.0),
        SkipJoinMLFQ(size, 1.0, cost=CostModel(base=0.5, prompt=0.5)),
    ):
        memory = Checked(20, bandwidth, proactive=proactive, reserve=5 if proactive else 0)
        result = simulate(served, policy, SECOND, memory=memory)
        assert np.all(result.finished >= result.arrival + result.output)
        assert result.finished.max() >= (result.busy + result.stalled) * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(REQUESTS, st.booleans())
def test_enough_memory_changes_nothing(served, proactive):
    enough = KVMemory(sum(r.prompt + r.output for r in served), 1.0, proactive=proactive)
    policy = SkipJoinMLFQ(2, 1.0, cost=SECOND, starvation=4.0)
    limited = simulate(served, policy, SECOND, memory=enough, trace=True)
    assert limited.trace == simulate(served, policy, SECOND, trace=True).trace
    assert (limited.swapped, limited.stalled) == (0, 0.0)


def test_impossible_memory_is_refused():
    require_refusals(
        (lambda: KVMemory(0, 1.0), "capacity must be an integer of at least 1"),
        (lambda: KVMemory(5, 0.0), "bandwidth must be above 0 and finite"),
        (lambda: KVMemory(5, 1.0, reserve=2), "only proactive swapping keeps a reserve"),
        (lambda: KVMemory(5, 1.0, proactive=True, reserve=5), "reserve is 5: give tokens"),
    )
