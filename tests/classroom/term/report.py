"""What was done in a term, how long it took, and what was checked."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SHOWN = 5  # problems of one check that are printed


@dataclass
class Step:
    """One thing that was done. cpu_s: of ended processes. note: its result in a few words."""

    name: str
    seconds: float = 0.0
    cpu_s: float = 0.0
    note: str = ""


@dataclass
class Report:
    """Steps and checks, printed as they come; `table` prints all of them at the end."""

    steps: list[Step] = field(default_factory=list)
    checks: dict[str, list[str]] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """A block that is timed; it may write the step's note."""
        step = Step(name)
        print(f"-- {name}", flush=True)
        began, used = time.monotonic(), _cpu_s()
        try:
            yield step
        finally:
            step.seconds, step.cpu_s = time.monotonic() - began, _cpu_s() - used
            self.steps.append(step)

    def check(self, name: str, problems: list[str]) -> None:
        """Remember what was found to be wrong; nothing, if the check has passed."""
        self.checks[name] = problems
        for text in problems[:SHOWN]:
            print(f"FAILED {name}: {text}", flush=True)

    @property
    def passed(self) -> bool:
        """Whether there were checks, and none has found a problem."""
        return bool(self.checks) and not any(self.checks.values())

    def table(self) -> str:
        """The steps with their seconds, then the checks.

        >>> report = Report([Step("release", 2.0, 1.0)], {"totals agree": []})
        >>> print(report.table())
         seconds  of CPU
             2.0     1.0  release
             2.0     1.0  all
        ok         totals agree
        """
        sums = (sum(step.seconds for step in self.steps), sum(step.cpu_s for step in self.steps))
        lines = [" seconds  of CPU"]
        for step in [*self.steps, Step("all", *sums)]:
            note = f": {step.note}" if step.note else ""
            lines.append(f"{step.seconds:8.1f}{step.cpu_s:8.1f}  {step.name}{note}")
        for name, problems in self.checks.items():
            state = f"{len(problems)} WRONG" if problems else "ok"
            lines.append(f"{state:9}  {name}")
        return "\n".join(lines)


def _cpu_s() -> float:
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def differences(found: dict, expected: dict) -> list[str]:
    """How two tables differ, in words; a row that is missing in one is None.

    >>> differences({"ada": 3}, {"ada": 4, "ben": 1})
    ['ada: 3; expected 4', 'ben: None; expected 1']
    """
    names = sorted(found.keys() | expected.keys(), key=repr)
    return [
        f"{' '.join(name) if isinstance(name, tuple) else name}: {found.get(name)}; "
        f"expected {expected.get(name)}"
        for name in names
        if found.get(name) != expected.get(name)
    ]
