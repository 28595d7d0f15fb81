"""Turns for clients: nobody can take the server by sending more than the others.

Order of arrival gives each client a share that grows with its requests. With virtual token
counters, every client has a counter of the tokens that the server has computed for it, and the next
free slot goes to the waiting client with the lowest counter. A client that was idle starts from the
lowest counter of the others, so that idleness saves up nothing.

Not here: interrupting a request that runs, and weights for clients that pay for more.
Source: Sheng et al. 2024, "Fairness in Serving Large Language Models" (OSDI), algorithm 2.
Chapter: serving/scheduling.
"""

from collections import deque
from collections.abc import Sequence

from course_pkg.studies.scheduling.policies import Chunk, ContinuousBatching, Job


class FairClients(ContinuousBatching):
    """Continuous batching in which the client that has received least is served next.

    clients: the client of each request, (requests,), as integers or names. A token of a prompt
    counts prompt_weight when the request joins, and a token of an answer answer_weight when it is
    computed; the source takes 1 and 2. Other arguments as for `ContinuousBatching`. Raises
    ValueError for a weight that isn't positive, and in `add` for a request without a client.
    """

    def __init__(
        self,
        max_batch: int,
        clients: Sequence,
        token_budget: int | None = None,
        *,
        prompt_weight: float = 1.0,
        answer_weight: float = 2.0,
    ):
        super().__init__(max_batch, token_budget)
        if not (prompt_weight > 0 and answer_weight > 0):
            raise ValueError(
                f"prompt_weight is {prompt_weight}, answer_weight {answer_weight}: give positive "
                "weights"
            )
        self.clients = clients
        self.prompt_weight = prompt_weight
        self.answer_weight = answer_weight
        self.waits: dict[object, deque[Job]] = {}  # by client, only those with requests that wait
        self.counters: dict[object, float] = {}
        self.last_served = None

    def add(self, job: Job) -> None:
        if job.index >= len(self.clients):
            raise ValueError(
                f"request {job.index} has no client: {len(self.clients)} clients were given, one "
                "per request"
            )
        client = self.clients[job.index]
        if client not in self.waits:
            self._lift(client)
            self.waits[client] = deque()
        self.waits[client].append(job)

    def ran(self, batch: list[Chunk], seconds: float, now: float) -> list[Job]:
        for job, _, _ in batch:
            if job.produced:
                self.counters[self.clients[job.index]] += self.answer_weight
        return super().ran(batch, seconds, now)

    def _pop(self) -> Job | None:
        if not self.waits:
            return None
        client = min(self.waits, key=self.counters.get)
        job = self.waits[client].popleft()
        if not self.waits[client]:
            del self.waits[client]
            self.last_served = client
        self.counters[client] += self.prompt_weight * job.prompt
        return job

    def _lift(self, client) -> None:
        """Bring the counter of a client that had nothing waiting up to the others'."""
        if self.waits:
            least = min(self.counters[other] for other in self.waits)
        else:
            least = self.counters.get(self.last_served, 0.0)
        self.counters[client] = max(self.counters.get(client, 0.0), least)
