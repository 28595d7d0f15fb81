"""Which worker runs which submission. Bookkeeping alone: it knows no Dask, and does no work.

If a worker ends, its submissions go to another one. After two lost workers a submission runs alone,
so that the third tells whether it was this one; then it alone is given up, whoever ran beside it.

Dask doesn't place the submissions (`distributed` 2026.8, `Scheduler.remove_worker`): it counts a
lost worker against every task that waits there, so honest submissions behind one that kills workers
would be given up with it. And it sends tasks to any worker, also to one with other code, without a
sandbox or encryption, or whose grader fails.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_GPUS = 1024  # of one worker
MOST_LOST = 3  # workers that a submission may take down
MOST_FAILED = 3  # workers on which one submission fails, and submissions that fail on one worker
FAILS = f"its grader failed on {MOST_FAILED} submissions in a row that others could run"


@dataclass(frozen=True)
class ListedWorker:
    """A worker as the scheduler describes it.

    Attributes:
        gpus: its resource GPU.
        instance: tells it from another one that has got the same address.
        running: whether it takes new tasks, and is not paused or about to end.
    """

    name: str
    gpus: float = 0.0
    instance: str = ""
    running: bool = True


@dataclass
class Worker:
    """One worker; gpus and instance as for ListedWorker.

    Attributes:
        room: submissions at a time; 0 until it is known that it can run some.
        refused: why it gets no submission, "" if it may.
    """

    name: str
    gpus: float = 0.0
    instance: str = ""
    room: int = 0
    refused: str = ""
    running: set[int] = field(default_factory=set)
    alone: bool = False  # whether what it runs must be the only one
    open: bool = True  # whether it takes more
    failed: int = 0  # submissions in a row on which its grader failed, and another one's did not
    failure: str = ""  # why it failed last

    @property
    def free(self) -> int:
        if self.alone or not self.open:
            return 0
        return self.room - len(self.running)


def gpus_in(resources: object) -> float:
    """The GPUs that a worker says it has; 0 for anything but a number from 1 on."""
    amount = resources.get("GPU") if isinstance(resources, dict) else None
    if type(amount) not in (int, float) or not 1 <= amount <= MOST_GPUS:
        return 0.0
    return float(int(amount))


class SubmissionPlacement:
    """The workers, and the submissions that wait or run, by number.

    Args:
        need: whether the assignment needs a GPU: "none", "optional" or "required". If it can use
            one and a worker has some, only workers with GPUs get submissions.
    """

    def __init__(self, need: str) -> None:
        self._need = need
        self.workers: dict[str, Worker] = {}
        self.left = False  # whether all that could run submissions have ended, and may come back
        self._waiting: deque[int] = deque()
        self._lost: Counter[int] = Counter()
        self._failed_on: dict[int, set[str]] = {}  # number -> instances of workers

    def update(self, listed: Mapping[str, ListedWorker]) -> tuple[list[str], list[int]]:
        """Compare with what the scheduler lists, by address: who is new, and what was lost.

        What was lost waits again, unless it has lost too many workers: see `given_up`.
        """
        lost: list[int] = []
        for address, worker in list(self.workers.items()):
            if address not in listed or listed[address].instance != worker.instance:
                self.left = self.left or worker.room > 0
                lost += sorted(self.workers.pop(address).running)
        for number in lost:
            self._lost[number] += 1
            if self._lost[number] < MOST_LOST:
                self._waiting.appendleft(number)
        new = [address for address in listed if address not in self.workers]
        for address in new:
            one = listed[address]
            self.workers[address] = Worker(one.name, one.gpus, one.instance)
        for address, one in listed.items():
            self.workers[address].open = one.running
        return new, lost

    def refuse(self, address: str, why: str) -> None:
        self.workers[address].refused = why
        self.workers[address].room = 0
        self.left = False  # if all are refused, waiting for another one does not help

    def given_up(self, number: int) -> bool:
        return self._lost[number] >= MOST_LOST

    def add(self, number: int) -> None:
        self._waiting.append(number)

    def done(self, number: int) -> None:
        self._take_off(number)
        del self._lost[number]
        self._failed_on.pop(number, None)

    def again(self, number: int) -> None:
        """A submission did not run, through no fault of its own: it waits again, first."""
        self._take_off(number)
        self._waiting.appendleft(number)

    def silent(self, number: int) -> None:
        """A worker did not reply in time: as if it had ended."""
        self.again(number)
        self._lost[number] += 1
        if self.given_up(number):
            self._waiting.remove(number)

    def failed(self, number: int, address: str, why: str) -> bool:
        """A worker's grader failed on a submission: whether that waits for another worker."""
        worker = self.workers[address]
        worker.failure = why
        tried = self._failed_on.setdefault(number, set())
        tried.add(worker.instance)
        if len(tried) >= MOST_FAILED or all(w.instance in tried for w in self._usable().values()):
            return False
        self.again(number)
        return True

    def ran(self, number: int, address: str) -> dict[str, str]:
        """A worker ran a submission: who failed on too many that others ran, and why."""
        self.workers[address].failed = 0
        failed_on = self._failed_on.get(number, ())
        blamed = {}
        for other, worker in self.workers.items():
            if worker.instance in failed_on:
                worker.failed += 1
                if worker.failed >= MOST_FAILED:
                    blamed[other] = f"{FAILS} ({worker.failure})"
        return blamed

    @property
    def on_gpus(self) -> bool:
        if self._need == "optional":
            return any(w.gpus and w.room for w in self.workers.values())
        return self._need == "required"

    def no_gpu(self) -> bool:
        """Whether submissions need a GPU, and no worker has one, though there are workers."""
        some = any(worker.gpus and not worker.refused for worker in self.workers.values())
        return self._need == "required" and bool(self.workers) and not some

    def wants(self, address: str) -> bool:
        """Whether a worker may get submissions, once it is known that it can run them."""
        return self._need != "required" or self.workers[address].gpus > 0

    def uses_gpu(self, address: str) -> bool:
        return self._need != "none" and self.workers[address].gpus > 0

    def room(self) -> int:
        return sum(worker.room for worker in self._usable().values())

    def waiting_alone(self) -> int:
        return len([number for number in self._waiting if self._must_run_alone(number)])

    def place(self) -> list[tuple[int, str]]:
        """Place what waits, where there is room; the numbers with the addresses of their workers.

        What must run alone gets a worker that runs nothing, and only while nothing else waits. What
        failed on a worker goes to another one, if there is one.
        """
        usable = self._usable()
        if usable:
            self.left = False
        placed = []
        still_waiting = []
        alone = []
        free = sum(max(0, worker.free) for worker in usable.values())
        for number in self._waiting:
            if self._must_run_alone(number):
                alone.append(number)
            elif free and (address := self._most_free(number, usable)):
                usable[address].running.add(number)
                placed.append((number, address))
                free -= 1
            else:
                still_waiting.append(number)
        if not still_waiting:
            idle = [address for address, w in usable.items() if w.open and not w.running]
            for number, address in zip(list(alone), idle, strict=False):
                usable[address].running.add(number)
                usable[address].alone = True
                placed.append((number, address))
                alone.remove(number)
        self._waiting = deque([*still_waiting, *alone])
        return placed

    def refusals(self) -> list[str]:
        """Why each worker is refused, if all of them are."""
        reasons = [f"{w.name}: {w.refused}" for w in self.workers.values() if w.refused]
        return reasons if len(reasons) == len(self.workers) else []

    def _take_off(self, number: int) -> None:
        for worker in self.workers.values():
            if number in worker.running:
                worker.running.discard(number)
                worker.alone = False
        if number in self._waiting:
            self._waiting.remove(number)

    def _must_run_alone(self, number: int) -> bool:
        return self._lost[number] == MOST_LOST - 1

    def _most_free(self, number: int, usable: Mapping[str, Worker]) -> str | None:
        """The worker with the most room, rather not one that it failed on, or None."""
        failed_on = self._failed_on.get(number, set())
        fresh = {a: w for a, w in usable.items() if w.instance not in failed_on}
        candidates = fresh or usable
        address = max(candidates, key=lambda a: candidates[a].free, default=None)
        return address if address and candidates[address].free > 0 else None

    def _usable(self) -> dict[str, Worker]:
        fit = {a: w for a, w in self.workers.items() if w.room and not w.refused}
        return {a: w for a, w in fit.items() if w.gpus} if self.on_gpus else fit
