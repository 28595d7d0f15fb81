"""A discrete-event simulator of an LLM server, fed with measured iteration times.

    requests(poisson(rate, …), …) → simulate(requests, policy, cost) → summarize(simulation)

`workload`: requests; `policies`, `mlfq` and `fair_clients`: what runs next; `iteration_cost`: the
time of an iteration; `kv_memory`: keys and values that move to the host; `loop`: the simulation;
`statistics`: its figures.
"""

from course_pkg.studies.scheduling.fair_clients import FairClients
from course_pkg.studies.scheduling.iteration_cost import (
    CostModel,
    Work,
    profile,
    recorded,
    recorded_points,
)
from course_pkg.studies.scheduling.kv_memory import KVMemory
from course_pkg.studies.scheduling.loop import Simulation, simulate
from course_pkg.studies.scheduling.mlfq import MLFQ, SkipJoinMLFQ
from course_pkg.studies.scheduling.policies import (
    SRPT,
    ContinuousBatching,
    Job,
    Policy,
    RunToCompletion,
    ShortestFirst,
    StaticBatching,
)
from course_pkg.studies.scheduling.statistics import (
    bootstrap,
    goodput,
    jain,
    per_token,
    summarize,
)
from course_pkg.studies.scheduling.workload import (
    Request,
    bimodal,
    gamma,
    lognormal,
    on_off,
    poisson,
    requests,
    zipf,
)
