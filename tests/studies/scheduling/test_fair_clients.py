"""Virtual token counters: turns by hand, and what one client's flood costs another."""

import numpy as np

from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.policies import ContinuousBatching, FairClients
from course_pkg.studies.scheduling.simulation import simulate
from course_pkg.studies.scheduling.workload import SimulatedRequest, poisson, requests
from tests.refusals import require_refusals
from tests.tables import each_row

SECOND = CostModel(base=1.0)


def order(served, policy) -> str:
    """Which request ran in each iteration, as letters."""
    trace = simulate(served, policy, SECOND, trace=True).trace
    return "".join("ABCDEFGH"[iteration.batch[0][0]] for iteration in trace)


@each_row(
    ("served", "clients", "expected"),
    [
        # Client 1 sends A, B, C, and client 2 sends D: D passes B and C.
        ([(0, 1, 1), (0, 1, 1), (0, 1, 1), (0, 1, 1)], [1, 1, 1, 2], "ADBC"),
        # A long answer costs as much as several short ones: A counts 1 + 2 · 3 = 7, each other 3.
        ([(0, 1, 3), (0, 1, 1), (0, 1, 1), (0, 1, 1), (0, 1, 1)], [1, 1, 2, 2, 2], "AAACDEB"),
        # Client 2 comes late and starts level with client 1, so it doesn't take all next turns.
        ([(0, 1, 1), (0, 1, 1), (1.5, 1, 1), (1.5, 1, 1)], [1, 1, 2, 2], "ABCD"),
        ([(0, 1, 2), (0, 1, 1), (0, 1, 1), (1.5, 1, 1), (1.5, 1, 1)], [1, 1, 1, 2, 2], "AADBEC"),
    ],
)
def test_the_client_that_has_received_least_is_served_next(served, clients, expected):
    coming = [SimulatedRequest(float(arrival), *lengths) for arrival, *lengths in served]
    assert order(coming, FairClients(1, clients)) == expected


def test_one_client_is_served_in_order_of_arrival():
    generator = np.random.default_rng(0)
    served = requests(poisson(0.5, 60, generator), [3] * 60, generator.integers(1, 9, 60))
    ours = simulate(served, FairClients(2, ["only"] * 60), SECOND, trace=True)
    assert ours.trace == simulate(served, ContinuousBatching(2), SECOND, trace=True).trace


def test_a_flood_of_one_client_delays_the_other_little():
    flood = [SimulatedRequest(0.0, 1, 4) for _ in range(50)]
    few = [SimulatedRequest(10.0 * turn, 1, 4) for turn in range(10)]
    clients = ["flood"] * 50 + ["few"] * 10
    first_come = simulate(flood + few, ContinuousBatching(1), SECOND)
    fair = simulate(flood + few, FairClients(1, clients), SECOND)
    waits = [(result.finished - result.arrival)[50:].max() for result in (first_come, fair)]
    assert waits[0] > 100
    assert waits[1] <= 8  # its own four seconds, and at most the request that runs
    assert fair.busy == first_come.busy  # no work is lost


def test_bad_arguments():
    two = [SimulatedRequest(0, 1, 1)] * 2
    require_refusals(
        (lambda: FairClients(0, []), "max_batch must be"),
        (lambda: simulate(two, FairClients(1, ["a"]), SECOND), "has no client"),
    )
