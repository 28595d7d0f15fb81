"""Run programs on the tests of problems: the program in one sandbox, its tests in another.

Without a sandbox, nothing runs. Processor time is limited, so that a right program doesn't fail on
a busy machine; a program with several processes can use more, until the clock ends it.
"""

import json
import os
import queue
import select
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_pkg.common.arguments import require_integer
from course_pkg.sandbox import policy
from course_pkg.sandbox.fork_server import ForkServer
from course_pkg.sandbox.limits import MIB, ResourceLimits
from course_pkg.sandbox.namespaces import SandboxFailed, memory_file
from course_pkg.sandbox.policy import View
from course_pkg.sandbox.probe import probe
from course_pkg.sandbox.process import SandboxedProcess
from course_pkg.studies.code_benchmarks import judge_process, program_process
from course_pkg.studies.code_benchmarks.judge_process import ENDED, ProgramResult, ProgramVerdict
from course_pkg.studies.code_benchmarks.problems import CodeProblem, humaneval_folder

PACKAGE = Path(__file__).resolve().parents[2]
BASE_UID = 0x6000_0000  # below the grader's
PARALLEL = 2  # programs at a time
FILES = 64  # that a process may have open
REPORT_WITHIN_S = 10.0  # after the program has closed its channel
XCPU, KILL = -24, -9  # how the kernel ends a process above its limit of processor time


@dataclass(frozen=True)
class ProgramLimits:
    """What one program may use; cpu_s: each of its processes; disk: each writable folder."""

    cpu_s: int = 5
    wall_s: int = 60
    memory_bytes: int = 256 * MIB
    processes: int = 16
    disk_bytes: int = 8 * MIB

    def __post_init__(self) -> None:
        for name in ("cpu_s", "wall_s", "memory_bytes", "processes", "disk_bytes"):
            require_integer(getattr(self, name), name)


class ProgramRunner:
    """Runs programs in sandboxes. Use as a context manager; several threads may call `run`.

    Raises:
        SandboxFailed: on a machine that can't create a sandbox, such as a Mac.
    """

    def __init__(self, limits: ProgramLimits | None = None) -> None:
        self.limits = limits or ProgramLimits()
        self._places: queue.Queue[int] = queue.Queue()
        for place in range(PARALLEL):
            self._places.put(place)
        self._stack = ExitStack()
        self._started = False  # inside `with`

    def __enter__(self) -> "ProgramRunner":
        state = probe()
        if not state.ok:
            raise SandboxFailed(
                f"programs can't be run here, because they need a sandbox: {state.detail} "
                f"({state.fix}). They are never run without one"
            )
        extra = {"PYTHONPATH": str(PACKAGE.parent), "PYTHONHASHSEED": "0"}
        environment = policy.environment(extra)
        with ExitStack() as stack:
            start = stack.enter_context
            programs = start(ForkServer(f"{program_process.__name__}:run", (), environment))
            judges = f"{judge_process.__name__}:run"
            self._programs = programs
            self._judges = start(ForkServer(judges, (), forked_by=programs))
            for server in (self._programs, self._judges):
                server.ready()
            self._stack = stack.pop_all()
        hidden = [PACKAGE.parent, PACKAGE / "data", *policy.unused_packages()]
        with suppress(ModuleNotFoundError):
            hidden.append(humaneval_folder())
        writable = dict.fromkeys(("/home/student", "/tmp"), self.limits.disk_bytes)
        self._view = View(policy.python_folders(), hidden=tuple(hidden), writable=writable)
        self._started = True
        return self

    def __exit__(self, *_: object) -> None:
        self._started = False
        self._stack.close()

    def run(self, problem: CodeProblem, program: str) -> ProgramResult:
        """Run a program on the tests of a problem; ValueError if these can't run."""
        if not self._started:
            raise RuntimeError(
                "this ProgramRunner has no sandboxes: it was not started, or has ended; call run "
                "and run_all inside `with ProgramRunner() as runner:`"
            )
        place = self._places.get()
        try:
            with ExitStack() as stack:
                return self._run(stack, place, problem, program)
        finally:
            self._places.put(place)

    def run_all(self, attempts: Iterable[tuple[CodeProblem, str]]) -> list[ProgramResult]:
        """The results of many programs, in order; of equal ones, one runs."""
        attempts = list(attempts)
        distinct = list(dict.fromkeys(attempts))
        with ThreadPoolExecutor(PARALLEL) as pool:
            results = pool.map(lambda attempt: self.run(*attempt), distinct)
            result_of = dict(zip(distinct, results, strict=True))
        return [result_of[attempt] for attempt in attempts]

    def _run(
        self, stack: ExitStack, place: int, problem: CodeProblem, program: str
    ) -> ProgramResult:
        ends = [stack.enter_context(end) for end in socket.socketpair()]
        report, report_in = _pipe(stack)
        verdict, verdict_in = _pipe(stack)
        source = program.encode(errors="surrogatepass")  # the compiler refuses what isn't a text
        tests = json.dumps({"setup": problem.setup, "checks": problem.checks}).encode()
        texts = [stack.enter_context(memory_file(content)) for content in (source, tests)]
        job = {"entry_point": problem.entry_point, "cpu_s": self.limits.cpu_s}
        written, tested = (self._process(stack, 2 * place + number) for number in range(2))
        started = (
            (written, self._programs, report_in, ends[0], texts[0]),
            (tested, self._judges, verdict_in, ends[1], texts[1]),
        )
        for process, server, into, end, text in started:
            process.start(server, job, [into.fileno(), end.fileno(), text.fileno()])
        for end in (*ends, report_in, verdict_in):
            end.close()

        until = time.monotonic() + self.limits.wall_s
        ended = None
        if report in _readable((report, verdict), until):
            ended = _read(report, until)
            written.kill()  # no more values will come, even if a child of the program still runs
        judgment = _read(verdict, until)
        late = time.monotonic() >= until
        if ended is None and judgment and judgment.get("verdict") == ENDED:
            ended = _read(report, time.monotonic() + REPORT_WITHIN_S)
        for message in (ended, judgment):
            if message and "failed" in message:
                raise SandboxFailed(f"a program could not enter its sandbox: {message['failed']}")
        if judgment and "broken" in judgment:
            raise ValueError(f"the tests of {problem.id} can't run: {judgment['broken']}")
        verdict_and_detail = self._verdict(judgment, ended or {}, written, tested, late)
        return ProgramResult(*verdict_and_detail, judgment["calls"] if judgment else 0)

    def _process(self, stack: ExitStack, number: int) -> SandboxedProcess:
        limits = self.limits
        resources = ResourceLimits(limits.memory_bytes, limits.processes, FILES, limits.disk_bytes)
        uid = None if os.geteuid() else BASE_UID + os.getpid() % 2**22 * 2 * PARALLEL + number
        return stack.enter_context(SandboxedProcess(self._view, uid, resources, "code"))

    def _verdict(
        self,
        judgment: dict[str, Any] | None,
        ended: dict[str, Any],
        written: SandboxedProcess,
        tested: SandboxedProcess,
        late: bool,
    ) -> tuple[ProgramVerdict, str]:
        """What the tests found; if they got no more values, a name for how the program ended."""
        limits = self.limits
        detail = judgment["detail"] if judgment else ""
        if judgment and judgment["verdict"] == ProgramVerdict.PASSED:
            return ProgramVerdict.PASSED, ""
        if written.enforcer.out_of_memory() or detail.partition(":")[0] == "MemoryError":
            return ProgramVerdict.MEMORY_LIMIT, f"{limits.memory_bytes // MIB} MiB"
        if written.enforcer.out_of_processes():
            return ProgramVerdict.PROCESS_LIMIT, f"{limits.processes} processes and threads"
        if judgment and judgment["verdict"] != ENDED:
            return ProgramVerdict(judgment["verdict"]), detail
        code = ended.get("exit")
        used_up = code == KILL and ended["cpu_s"] >= limits.cpu_s
        if code == XCPU or used_up:
            return ProgramVerdict.TIME_LIMIT, f"{limits.cpu_s} s of processor time"
        if late:
            return ProgramVerdict.TIME_LIMIT, f"{limits.wall_s} s"
        if not judgment:  # comparing the values took too long, or too much memory
            limit = (
                ProgramVerdict.MEMORY_LIMIT
                if tested.enforcer.out_of_memory()
                else ProgramVerdict.TIME_LIMIT
            )
            return limit, "in the tests"
        if code is not None and code >= 0:
            return ProgramVerdict.EXITED, f"exit code {code}"
        return ProgramVerdict.KILLED, "" if code is None else f"signal {-code}"


def _pipe(stack: ExitStack) -> tuple[Any, Any]:
    reading, writing = os.pipe()
    return (
        stack.enter_context(os.fdopen(reading, "rb", 0)),
        stack.enter_context(os.fdopen(writing, "wb", 0)),
    )


def _readable(pipes: Iterable[Any], until: float) -> list[Any]:
    """Those pipes that have something to read or are at their end; waits for one."""
    poll = select.poll()
    by_number = {pipe.fileno(): pipe for pipe in pipes}
    for number in by_number:
        poll.register(number, select.POLLIN)
    ready = poll.poll(max(0.0, until - time.monotonic()) * 1000)
    return [by_number[number] for number, _ in ready]


def _read(pipe: Any, until: float) -> dict[str, Any] | None:
    """The one message in a pipe: {} at its end; None if there is none in time."""
    if not _readable((pipe,), until):
        return None
    content = pipe.read(1 << 16)
    return json.loads(content) if content else {}
