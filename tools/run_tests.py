"""Run the tests in two processes, and those that failed once more, alone.

    python tools/run_tests.py [options and paths of pytest]
    python tools/run_tests.py --other-cpu-instructions [options and paths of pytest]

If at most five tests failed, they run a second time when the others are done, in one process. If
all of them pass then, the run succeeds and ends with their list; `_build/logs/second-tries.log`
keeps what both runs said. The second form runs the tests once with each other kind of CPU
instructions (cpu_instructions.py). A whole run leaves the seconds of each test in
`_build/logs/tests.json`, which `make budgets` reads.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import cpu_instructions
import pytest

AT_MOST = 5
IN_TWO_PROCESSES = ("-n", "2", "--dist", "loadscope")
LOGS = Path("_build/logs")
SECOND_TRIES = LOGS / "second-tries.log"
TIMES = LOGS / "tests.json"
AGAIN = "--these-alone"  # how this program starts itself for the second try


class Recorder:
    """What a run of pytest found; with several processes, the main one has this plugin."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.collected: set[str] = set()
        self.collection_seconds = 0.0
        self.seconds: dict[str, float] = defaultdict(float)
        self.slow: set[str] = set()
        self.passed: set[str] = set()
        self.failures: dict[str, str] = {}
        self.uncollected: list[str] = []
        self.stopped = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log):
        return _scheduler(config, log) if config.getvalue("dist") == "loadscope" else None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids) -> None:
        self._collected(ids)

    def _collected(self, names) -> None:
        self.collected.update(names)
        self.collection_seconds = time.monotonic() - self.began

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.uncollected.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self.seconds[name] += report.duration
        if "slow" in report.keywords:
            self.slow.add(name)
        if report.failed:
            parts = [report.longreprtext, *(f"{title}\n{text}" for title, text in report.sections)]
            self.failures[name] = "\n".join([self.failures.get(name, ""), *parts]).strip()
        elif report.when == "call" and report.passed:
            self.passed.add(name)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.stopped = bool(session.shouldfail or session.shouldstop)

    @property
    def whole(self) -> bool:
        """Whether every test that was collected has ended."""
        return not self.stopped and not self.uncollected and self.collected <= self.seconds.keys()


def _scheduler(config, log):
    """`--dist loadscope`, but a test that took its process down is not given to the next one.

    xdist would repeat it until it has lost eight processes, and then leave out what comes after it.
    """
    from xdist.scheduler import LoadScopeScheduling  # pytest imports xdist first, as a plugin

    class OncePerTest(LoadScopeScheduling):
        def remove_node(self, node) -> str | None:
            units = self.assigned_work.pop(node)
            for unit in units.values():
                for name, done in unit.items():
                    if not done:
                        unit[name] = True
                        self._hand_out(units)
                        return name
            return None

        def _hand_out(self, units: dict[str, dict[str, bool]]) -> None:
            for scope, unit in units.items():
                if not all(unit.values()):
                    self.workqueue[scope] = unit
            for node in self.assigned_work:
                self._reschedule(node)

    return OncePerTest(config, log)


class Only:
    """Collects these tests instead of the paths on the command line."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        files = (name.partition("::") for name in self.names)
        config.args = [f"{config.rootpath / file}{colons}{rest}" for file, colons, rest in files]


def run_tests(arguments: list[str]) -> int:
    """Run pytest, with a second try for a few failures; returns its exit code."""
    first = Recorder()
    code = int(pytest.main([*IN_TWO_PROCESSES, *arguments], plugins=[first]))
    if not arguments and first.whole:
        _record_times(first)
    if code != pytest.ExitCode.TESTS_FAILED or not first.whole or not first.failures:
        return code
    if len(first.failures) > AT_MOST:
        print(f"{len(first.failures)} tests failed; at most {AT_MOST} get a second try")
        return code
    print(f"\nA second try, alone, of what failed ({len(first.failures)}):\n", flush=True)
    passed, said = _alone(list(first.failures), arguments)
    _log(first.failures, said, passed)
    for name in first.failures:
        if name not in passed:
            print(f"{'failed twice' if name in said else 'no second result'}: {name}")
    if first.failures.keys() - passed:
        return code
    print(f"\nAll tests passed, these at the second try (both outputs are in {SECOND_TRIES}):")
    print(*(f"  {name}" for name in sorted(passed)), sep="\n")
    return 0


def _alone(names: list[str], arguments: list[str]) -> tuple[set[str], dict[str, str]]:
    """Run these tests in one new process: those that passed, and what the failures said."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tests.json")
        file.write_text(json.dumps(names))
        code = _start([AGAIN, str(file), *arguments])
        outcome = json.loads(file.read_text())
    if not isinstance(outcome, dict):
        print(f"the process of the second try ended with {code} before its tests did")
        return set(), dict.fromkeys(names, "the process ended")
    return set(outcome["passed"]) - outcome["failures"].keys(), outcome["failures"]


def _start(arguments: list[str], **variables: str) -> int:
    """Start this program in a new process and wait for it; its exit code.

    Ctrl-C reaches both processes: the new one ends its tests and says so, and this one waits.
    """
    command = [sys.executable, __file__, *arguments]
    process = subprocess.Popen(command, env=os.environ | variables)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def run_alone(file: Path, arguments: list[str]) -> int:
    """The second try: run the tests that the file lists, and write there what came out."""
    names = json.loads(file.read_text())
    recorder = Recorder()
    code = int(pytest.main([*arguments, "-n", "0"], plugins=[recorder, Only(names)]))
    outcome = {"passed": sorted(recorder.passed), "failures": recorder.failures}
    file.write_text(json.dumps(outcome))
    return code


def _log(first: dict[str, str], second: dict[str, str], passed: set[str]) -> None:
    """Keep what both tries said."""
    LOGS.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    with SECOND_TRIES.open("a", encoding="utf-8") as log:
        for name, said in first.items():
            end = "passed at the second try" if name in passed else "failed"
            then = "passed" if name in passed else second.get(name, "no result")
            log.write(f"==== {now:%Y-%m-%d %H:%M} UTC, {end}: {name}\n")
            log.write(f"---- the first try\n{said}\n---- the second try\n{then}\n\n")


def _record_times(run: Recorder) -> None:
    """Keep the seconds of a whole run and of its tests."""
    LOGS.mkdir(parents=True, exist_ok=True)
    record = {
        "seconds": time.monotonic() - run.began,
        "collection_seconds": run.collection_seconds,
        "tests": dict(run.seconds),
        "slow": sorted(run.slow),
    }
    TIMES.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def run_with_other_instructions(arguments: list[str]) -> int:
    """Run the tests once with each other kind of instructions; 0 if all of these runs succeed."""
    codes = {}
    for variables in cpu_instructions.choices()[1:]:
        name = " ".join(f"{name}={value}" for name, value in variables.items())
        print(f"\nwith {name}:", flush=True)
        codes[name] = _start(arguments, **variables)
        if codes[name] == pytest.ExitCode.INTERRUPTED:
            break
    said = ", ".join(f"{name} ended with {code}" for name, code in codes.items())
    print(f"\nother CPU instructions: {said or 'this machine has none'}")
    return int(any(codes.values()))


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--other-cpu-instructions", *others]:
            return run_with_other_instructions(others)
        case [command, file, *others] if command == AGAIN:
            return run_alone(Path(file), others)
    return run_tests(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
