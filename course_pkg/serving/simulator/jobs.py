"""What a policy is: the jobs in a server, and the questions that the simulation asks.

A job is a request with its state. Before each iteration, `next_batch` answers with chunks: jobs,
each with the tokens to compute for it. After it, `ran` answers with the jobs that leave.
Chapter: serving/scheduling.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Job:
    """A request in the server, and how far it is.

    index: its place in the list of requests. read: tokens of the prompt that are computed;
    produced: tokens of the answer. first_token, last_token, finished: when, in seconds. level,
    used, waits_since: for queues with feedback; the highest level is 0.
    """

    index: int
    arrival: float
    prompt: int
    output: int
    read: int = 0
    produced: int = 0
    first_token: float = math.nan
    last_token: float = math.nan
    finished: float = math.nan
    level: int = 0
    used: float = 0.0
    waits_since: float = 0.0

    @property
    def done(self) -> bool:
        """Whether the last token is there."""
        return self.produced == self.output

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are kept: the newest is not yet among them."""
        return self.read + max(self.produced - 1, 0)

    def chunk(self) -> "Chunk":
        """Its next iteration: the rest of its prompt, or one token."""
        return self, (self.prompt - self.read) or 1, self.cached


Chunk = tuple[Job, int, int]  # a job, how many tokens to compute, how many are before them


class Policy(ABC):
    """What to run next. `simulate` copies a policy, so one object serves for many simulations."""

    @abstractmethod
    def add(self, job: Job) -> None:
        """A job has arrived."""

    @abstractmethod
    def next_batch(self, now: float) -> list[Chunk]:
        """What the next iteration computes, the most urgent first; empty to wait."""

    def ran(self, batch: list[Chunk], seconds: float, now: float) -> list[Job]:
        """The batch has run, and its jobs have their tokens. Returns the jobs that leave."""
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
