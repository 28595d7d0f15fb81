"""Multi-level feedback queues, and FastServe's skip-join variant.

Source: FastServe (Wu et al. 2023, arXiv 2305.05920), algorithm 1.
"""

import heapq
import math
from collections import OrderedDict
from itertools import accumulate

from course_pkg.common.arguments import require_integer
from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.policies import Chunk, Job, Preemptive, chunks, require_budget

ROUNDING = 1 - 1e-9  # a sum of float times may be this little short of the quantum


class MLFQ(Preemptive):
    """Feedback queues in which every job joins the highest, and sinks when its quantum is used up.

    A job is charged the whole time of its iterations.

    Args:
        max_batch: jobs in an iteration.
        quantum: seconds in the highest queue; the next ones have 2, 4, … times that.
        levels: the number of queues; the lowest is served in turns of its quantum.
        starvation: a job that has waited so many seconds is promoted to the end of the highest.
    """

    def __init__(
        self,
        max_batch: int,
        quantum: float,
        *,
        token_budget: int | None = None,
        levels: int = 10,
        starvation: float = math.inf,
    ):
        require_budget(token_budget, max_batch)
        require_integer(levels, "levels")
        if not (0 < quantum < math.inf and starvation > 0):
            raise ValueError(f"quantum is {quantum}, starvation {starvation}: give positive ones")
        self.max_batch = max_batch
        self.token_budget = token_budget
        self.starvation = starvation
        self.quanta = [quantum * 2**level for level in range(levels)]
        self.queues: list[OrderedDict[int, Job]] = [OrderedDict() for _ in range(levels)]
        self.alarms: list[tuple[float, int, Job]] = []  # one per job, when it may starve

    def join(self, job: Job) -> int:
        """The level at which a new job starts."""
        return 0

    def add(self, job: Job) -> None:
        job.level = self.join(job)
        job.waits_since = job.arrival
        self.queues[job.level][job.index] = job
        if self.starvation < math.inf:
            heapq.heappush(self.alarms, (job.arrival + self.starvation, job.index, job))

    def next_batch(self, now: float) -> list[Chunk]:
        self._promote(now)
        jobs: list[Job] = []
        for queue in self.queues:
            while queue and len(jobs) < self.max_batch:
                jobs.append(queue.popitem(last=False)[1])
        batch = chunks(jobs, self.token_budget)
        if len(batch) < len(jobs):
            served = {job.index for job, _, _ in batch}
            self.put_back([job for job in jobs if job.index not in served])
        return batch

    def ran(self, batch: list[Chunk], seconds: float, now: float) -> list[Job]:
        kept = []
        for chunk in batch:
            job = chunk[0]
            if job.done:
                continue
            job.used += self.charge(chunk, seconds)
            job.waits_since = now
            if job.used < self.quanta[job.level] * ROUNDING:
                kept.append(job)
                continue
            job.level = min(job.level + 1, len(self.queues) - 1)
            job.used = 0.0
            self.queues[job.level][job.index] = job
        self.put_back(kept)
        return super().ran(batch, seconds, now)

    def charge(self, chunk: Chunk, seconds: float) -> float:
        """The seconds that a job pays for an iteration of `seconds` that computed its chunk."""
        return seconds

    def put_back(self, jobs: list[Job]) -> None:
        for job in reversed(jobs):
            queue = self.queues[job.level]
            queue[job.index] = job
            queue.move_to_end(job.index, last=False)

    def waiting(self, now: float) -> list[Job]:
        """By FastServe's estimate of when each will run next (ENST), the soonest first.

        The sooner of promotion, and the time that the jobs in higher queues need to sink to its
        level, divided by max_batch.
        """
        sinks = [0.0, *accumulate(self.quanta)]  # from the highest queue down to each level
        times = {}
        for level, queue in enumerate(self.queues):
            higher = enumerate(self.queues[:level])
            sink = sum(len(other) * (sinks[level] - sinks[above]) for above, other in higher)
            for job in queue.values():
                promoted = job.waits_since + self.starvation - now
                times[job] = min(promoted, sink / self.max_batch)
        return sorted(times, key=times.get)

    def _promote(self, now: float) -> None:
        """Promote the jobs that starve, in the order in which they began to."""
        while self.alarms and self.alarms[0][0] <= now:
            alarm, _, job = heapq.heappop(self.alarms)
            if job.done:
                continue
            due = job.waits_since + self.starvation
            if due == alarm:
                if job.level:
                    del self.queues[job.level][job.index]
                    job.level = 0
                    job.used = 0.0
                    self.queues[0][job.index] = job
                job.waits_since = now
                due = now + self.starvation
            heapq.heappush(self.alarms, (due, job.index, job))  # it may have run since


class SkipJoinMLFQ(MLFQ):
    """FastServe: a job joins the highest queue whose quantum fits its first iteration, alone.

    >>> policy = SkipJoinMLFQ(4, quantum=1.0, cost=CostModel(base=0.5, prompt=0.5), levels=3)
    >>> [policy.join(Job(0, 0.0, prompt, output=9)) for prompt in (1, 2, 3, 4, 7, 8)]
    [0, 1, 1, 2, 2, 2]
    """

    def __init__(self, max_batch: int, quantum: float, *, cost: CostModel, **others):
        super().__init__(max_batch, quantum, **others)
        self.cost = cost

    def join(self, job: Job) -> int:
        first = self.cost.first_iteration(job.prompt) * ROUNDING
        fits = (level for level, quantum in enumerate(self.quanta) if quantum >= first)
        return next(fits, len(self.quanta) - 1)
