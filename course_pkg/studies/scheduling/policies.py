"""Policies: what a server runs next. Here are those without feedback; `mlfq` has the others.

Sources: Orca (Yu et al. 2022); Sarathi-Serve (Agrawal et al. 2024) for chunked prefill; Schrage
1968 for SRPT; Sheng et al. 2024, algorithm 2, for fair clients.
"""

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.studies.scheduling.iteration_cost import CostModel

PROMPT_WEIGHT, ANSWER_WEIGHT = 1, 2  # of a token in the counters of `FairClients`


@dataclass(slots=True, eq=False)
class Job:
    """A request in the server, and how far it is. Times are in seconds."""

    index: int  # its place in the list of requests
    arrival: float
    prompt: int
    output: int
    read: int = 0  # tokens of the prompt that are computed
    produced: int = 0  # tokens of the answer
    first_token: float = math.nan
    last_token: float = math.nan
    finished: float = math.nan
    level: int = 0  # of queues with feedback; the highest is 0
    used: float = 0.0
    waits_since: float = 0.0

    @property
    def done(self) -> bool:
        """Whether the last token is there."""
        return self.produced == self.output

    @property
    def per_token(self) -> float:
        """Mean seconds between its tokens; NaN for an answer of one token."""
        if self.output == 1:
            return math.nan
        return (self.last_token - self.first_token) / (self.output - 1)

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are kept: the newest is not yet among them."""
        return self.read + max(self.produced - 1, 0)

    def chunk(self) -> "Chunk":
        """Its next iteration: the rest of its prompt, or one token."""
        return self, (self.prompt - self.read) or 1, self.cached


Chunk = tuple[Job, int, int]  # a job, how many tokens to compute, how many are before them


def chunks(jobs: Sequence[Job], token_budget: int | None) -> list[Chunk]:
    """The next iteration of these jobs, within a budget of tokens.

    Args:
        token_budget: jobs that decode come first, with a token each; the rest goes to the prompts
            in the order given, so a long one is read in several iterations. None reads every prompt
            at once.

    >>> long, short, decoding = Job(0, 0.0, 6, 1), Job(1, 0.0, 2, 1), Job(2, 0.0, 3, 5, 3, 1)
    >>> [(job.index, tokens) for job, tokens, _ in chunks([long, short, decoding], 4)]
    [(2, 1), (0, 3)]
    """
    if token_budget is None:
        return [job.chunk() for job in jobs]
    batch = [job.chunk() for job in jobs if job.produced]
    room = token_budget - len(batch)
    for job in jobs:
        if not job.produced and room:
            tokens = min(job.prompt - job.read, room)
            batch.append((job, tokens, job.read))
            room -= tokens
    return batch


def require_budget(token_budget: int | None, max_batch: int) -> None:
    """Raise unless max_batch is at least 1 and the budget has a token for each job."""
    require_integer(max_batch, "max_batch")
    if token_budget is not None:
        require_integer(token_budget, "token_budget", max_batch)


class Policy(ABC):
    """What to run next. `simulate` copies a policy, so one object serves for many simulations."""

    @abstractmethod
    def add(self, job: Job) -> None:
        """A job has arrived."""

    @abstractmethod
    def next_batch(self, now: float) -> list[Chunk]:
        """What the next iteration computes, the most urgent first; empty to wait."""

    def ran(self, batch: list[Chunk], seconds: float, now: float) -> list[Job]:
        """The batch has run, and its jobs have their tokens."""
        return [job for job, _, _ in batch if job.done]

    def wake(self) -> float:
        """When a policy that waits will have a batch even if nothing arrives."""
        return math.inf


class Preemptive(Policy):
    """A policy whose jobs may be put aside between iterations, so that KV memory can be limited."""

    @abstractmethod
    def put_back(self, jobs: list[Job]) -> None:
        """The last jobs of the batch have no memory and will not run."""

    @abstractmethod
    def waiting(self, now: float) -> list[Job]:
        """The jobs outside the batch, from the first to run to the last, as far as is known."""


class StaticBatching(Policy):
    """Batches that stay together until the longest answer is complete, in order of arrival.

    Prompts are padded to the longest, complete rows go on as padding, and all answers are returned
    at the end.

    Args:
        max_wait: seconds that the first request of a batch that isn't full waits; above 0 it is
            also called dynamic batching.
    """

    def __init__(self, size: int, max_wait: float = 0.0):
        require_integer(size, "size")
        require_between(max_wait, "max_wait", 0, math.inf, closed=True)
        self.size = size
        self.max_wait = max_wait
        self.queue: deque[Job] = deque()
        self.group: list[Job] = []
        self.steps = 0  # iterations of the group so far

    def add(self, job: Job) -> None:
        self.queue.append(job)

    def wake(self) -> float:
        return self.queue[0].arrival + self.max_wait if self.queue else math.inf

    def take(self) -> list[Job]:
        """The next group, removed from the queue: the oldest requests."""
        return [self.queue.popleft() for _ in range(min(self.size, len(self.queue)))]

    def next_batch(self, now: float) -> list[Chunk]:
        if not self.group:
            if len(self.queue) < self.size and now < self.wake():
                return []
            self.group = self.take()
            self.steps = 0
        width = max(job.prompt for job in self.group)
        if self.steps == 0:
            return [(job, width, 0) for job in self.group]
        return [(job, 1, width + self.steps - 1) for job in self.group]

    def ran(self, batch: list[Chunk], seconds: float, now: float) -> list[Job]:
        self.steps += 1
        if not all(job.done for job in self.group):
            return []
        leaving = self.group
        self.group = []
        return leaving


class ContinuousBatching(Preemptive):
    """A request joins at the next iteration if a place is free, and leaves at its last token."""

    def __init__(self, max_batch: int, token_budget: int | None = None):
        require_budget(token_budget, max_batch)
        self.max_batch = max_batch
        self.token_budget = token_budget
        self.queue: deque[Job] = deque()
        self.running: list[Job] = []

    def add(self, job: Job) -> None:
        self.queue.append(job)

    def next_batch(self, now: float) -> list[Chunk]:
        while len(self.running) < self.max_batch and (job := self._pop()):
            self.running.append(job)
        return chunks(self.running, self.token_budget)

    def ran(self, batch: list[Chunk], seconds: float, now: float) -> list[Job]:
        leaving = super().ran(batch, seconds, now)
        if leaving:
            self.running = [job for job in self.running if not job.done]
        return leaving

    def put_back(self, jobs: list[Job]) -> None:
        """They keep their places."""

    def waiting(self, now: float) -> list[Job]:
        return self.running

    def _pop(self) -> Job | None:
        """The waiting job that joins next, taken from the queue."""
        return self.queue.popleft() if self.queue else None


class RunToCompletion(ContinuousBatching):
    """One request at a time, in order of arrival: a plain queue."""

    def __init__(self):
        super().__init__(max_batch=1)


class ShortestFirst(ContinuousBatching):
    """Continuous batching in which the request with the lowest key, a number, joins first."""

    def __init__(
        self,
        max_batch: int,
        key: Callable[[Job], float] = lambda job: job.prompt,
        token_budget: int | None = None,
    ):
        super().__init__(max_batch, token_budget)
        self.key = key
        self.queue: list[tuple[float, int, Job]] = []

    def add(self, job: Job) -> None:
        heapq.heappush(self.queue, (self.key(job), job.index, job))

    def _pop(self) -> Job | None:
        return heapq.heappop(self.queue)[-1] if self.queue else None


class SRPT(Policy):
    """Shortest remaining processing time: an oracle that knows how long each answer will be.

    With max_batch 1 and free preemption, no policy has a lower mean completion time.
    """

    def __init__(self, max_batch: int, cost: CostModel, token_budget: int | None = None):
        require_budget(token_budget, max_batch)
        self.max_batch = max_batch
        self.cost = cost
        self.token_budget = token_budget
        self.chosen: list[Job] = []
        self.heap: list[tuple[float, int, Job]] = []

    def add(self, job: Job) -> None:
        heapq.heappush(self.heap, (self._left(job), job.index, job))

    def next_batch(self, now: float) -> list[Chunk]:
        number = min(self.max_batch, len(self.heap))
        self.chosen = [heapq.heappop(self.heap)[-1] for _ in range(number)]
        return chunks(self.chosen, self.token_budget)

    def ran(self, batch: list[Chunk], seconds: float, now: float) -> list[Job]:
        for job in self.chosen:
            if not job.done:
                self.add(job)
        return super().ran(batch, seconds, now)

    def _left(self, job: Job) -> float:
        whole = self.cost.alone(job.prompt, job.output)
        if job.produced:
            return whole - self.cost.alone(job.prompt, job.produced)
        return whole - self.cost.first_iteration(job.read) if job.read else whole


class FairClients(ContinuousBatching):
    """Continuous batching in which the client that has received least is served next.

    A client that was idle starts from the lowest counter of the others, so idleness saves up
    nothing.
    """

    def __init__(self, max_batch: int, clients: Sequence, token_budget: int | None = None):
        super().__init__(max_batch, token_budget)
        self.clients = clients
        self.waits: dict[object, deque[Job]] = {}  # by client, only those with requests that wait
        self.counters: dict[object, float] = {}
        self.last_served = None

    def add(self, job: Job) -> None:
        if job.index >= len(self.clients):
            raise ValueError(
                f"request {job.index} has no client; only {len(self.clients)} are given"
            )
        client = self.clients[job.index]
        if client not in self.waits:
            self._lift(client)
            self.waits[client] = deque()
        self.waits[client].append(job)

    def ran(self, batch: list[Chunk], seconds: float, now: float) -> list[Job]:
        for job, _, _ in batch:
            if job.produced:
                self.counters[self.clients[job.index]] += ANSWER_WEIGHT
        return super().ran(batch, seconds, now)

    def _pop(self) -> Job | None:
        if not self.waits:
            return None
        client = min(self.waits, key=self.counters.get)
        job = self.waits[client].popleft()
        if not self.waits[client]:
            del self.waits[client]
            self.last_served = client
        self.counters[client] += PROMPT_WEIGHT * job.prompt
        return job

    def _lift(self, client) -> None:
        """Bring the counter of a client that had nothing waiting up to the others'."""
        if self.waits:
            least = min(self.counters[other] for other in self.waits)
        else:
            least = self.counters.get(self.last_served, 0.0)
        self.counters[client] = max(self.counters.get(client, 0.0), least)
