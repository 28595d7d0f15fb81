"""KV memory that is too small: which jobs' keys and values are on the GPU, and what moving costs.

A job moves as a whole. Source: FastServe (Wu et al. 2023, arXiv 2305.05920).
"""

import math

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.studies.scheduling.policies import Chunk, Job, Preemptive


class KVMemory:
    """Room for the keys and values of `capacity` tokens on the GPU, and of any number on the host.

    Reactive swapping moves when a batch needs it, and the GPU waits.

    Args:
        bandwidth: tokens per second, in each direction.
        proactive: move during iterations also: late jobs out, soon ones back.
        reserve: tokens that proactive swapping keeps free.
    """

    def __init__(
        self, capacity: int, bandwidth: float, *, proactive: bool = False, reserve: int = 0
    ):
        require_integer(capacity, "capacity")
        require_between(bandwidth, "bandwidth", 0, math.inf)
        if not 0 <= reserve < capacity or (reserve and not proactive):
            raise ValueError(
                f"reserve is {reserve}: give tokens, at least 0 and less than the capacity of "
                f"{capacity}; only proactive swapping keeps a reserve"
            )
        self.capacity = capacity
        self.bandwidth = bandwidth
        self.proactive = proactive
        self.reserve = reserve
        self.gpu: dict[Job, int] = {}  # tokens on the GPU, or on the way there
        self.host: dict[Job, int] = {}
        self.leaving: dict[Job, float] = {}  # still on the GPU, until then
        self.coming: dict[Job, float] = {}  # its room is taken, and it can run from then
        self.running: set[Job] = set()  # the batch
        self.out_free = 0.0  # when each direction of the link is free
        self.in_free = 0.0
        self.moved = 0  # tokens, in both directions

    @property
    def free(self) -> int:
        """Tokens of the GPU's memory that nobody has."""
        return self.capacity - sum(self.gpu.values())

    def admit(
        self, batch: list[Chunk], policy: Preemptive, now: float
    ) -> tuple[list[Chunk], float]:
        """Make room for a batch: the part of it that fits, and when it can start."""
        self._settle(now)
        batch, needs = self._fitting(batch, policy)
        self.running = {job for job, _, _ in batch}
        for job in self.running & self.leaving.keys():
            del self.leaving[job]  # it is still there
        start = now
        over = needs + sum(n for job, n in self.gpu.items() if job not in self.running)
        leaving = self._last_first(policy, now, self.running) if over > self.capacity else []
        for job in leaving:
            if over <= self.capacity:
                break
            over -= self.gpu[job]
            if job in self.coming:  # it has not arrived, and its copy on the host is whole
                del self.coming[job]
            elif job in self.leaving:
                start = max(start, self.leaving.pop(job))
            else:
                start = self.out_free = max(now, self.out_free) + self._takes(job)
            self.host[job] = self.gpu.pop(job)
        for job, tokens, before in batch:
            if job in self.host:
                self.gpu[job] = self.host.pop(job)
                self.in_free = max(start, self.in_free) + self._takes(job)
                self.coming[job] = self.in_free
            start = max(start, self.coming.pop(job, start))
            self.gpu[job] = before + tokens
        return batch, start

    def overlap(self, policy: Preemptive, start: float, end: float) -> None:
        """Start transfers during an iteration; one that is not complete goes on after it."""
        if not self.proactive:
            return
        lacking = self.reserve - self.free - sum(self.gpu[job] for job in self.leaving)
        if lacking > 0:
            staying = self.running | self.leaving.keys() | self.coming.keys()
            for job in self._last_first(policy, start, staying):
                if lacking <= 0 or self.out_free >= end:
                    return
                self.out_free = max(start, self.out_free) + self._takes(job)
                self.leaving[job] = self.out_free
                lacking -= self.gpu[job]
        elif self.host and self.in_free < end:
            room = self.free - self.reserve
            for job in policy.waiting(start):
                if self.in_free >= end:
                    return
                if job in self.host:
                    room -= self.host[job]
                    if room < 0:
                        return
                    self.gpu[job] = self.host.pop(job)
                    self.in_free = max(start, self.in_free) + self._takes(job)
                    self.coming[job] = self.in_free

    def release(self, job: Job) -> None:
        """The job has left the server."""
        del self.gpu[job]

    def _settle(self, now: float) -> None:
        for job in [job for job, until in self.leaving.items() if until <= now]:
            self.host[job] = self.gpu.pop(job)
            del self.leaving[job]
        for job in [job for job, until in self.coming.items() if until <= now]:
            del self.coming[job]

    def _fitting(self, batch: list[Chunk], policy: Preemptive) -> tuple[list[Chunk], int]:
        needs = 0
        for number, (_, tokens, before) in enumerate(batch):
            if needs + tokens + before > self.capacity:
                policy.put_back([job for job, _, _ in batch[number:]])
                return batch[:number], needs
            needs += tokens + before
        return batch, needs

    def _last_first(self, policy: Preemptive, now: float, but: set[Job]) -> list[Job]:
        """The jobs on the GPU, without some, from the last to run to the first."""
        waiting = reversed(policy.waiting(now))
        return [job for job in waiting if job in self.gpu and job not in but]

    def _takes(self, job: Job) -> float:
        tokens = self.gpu[job]
        self.moved += tokens
        return tokens / self.bandwidth
