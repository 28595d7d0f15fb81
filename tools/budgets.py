"""Print what things took beside what they may take: `make budgets`.

    python tools/budgets.py [NAME=SECONDS …]

It reads what the last build, the last whole `make test` and the last benchmarks recorded. The
arguments are what the caller measured, such as `make=640`. Nothing fails because of this table.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import reading  # noqa: E402

MINUTE = 60
COMMANDS = {"make": 12 * MINUTE, "make test": 12 * MINUTE, ".ci/run": 40 * MINUTE}
COLLECTION = 20  # seconds
TESTS = 9_000
TEST = 10  # seconds, unless it is marked as slow
PAGE = 20  # processor seconds of one core of a laptop
LONG_PAGES = {"book/adapters/lora-training": 3 * MINUTE}  # trains, and writes 48 answers
GFLOPS = 50  # float32 speed of such a core
READING = 15 * MINUTE
SHOWN = 10  # of each part, those that are over it most


@dataclass(frozen=True)
class Row:
    """One budget: what it is for, what was measured, and what is allowed."""

    what: str
    took: float
    budget: float
    unit: str = "s"

    @property
    def over(self) -> bool:
        return self.took > self.budget

    def line(self) -> str:
        figures = f"{in_words(self.took, self.unit):>14}{in_words(self.budget, self.unit):>14}"
        return f"{self.what:<70}{figures}{'  over' if self.over else ''}"


def in_words(value: float, unit: str) -> str:
    if unit == "ratio":
        return f"{value:.3f}"
    if unit != "s":
        return f"{value:,.0f}"
    if value < MINUTE:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), MINUTE)
    return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"


def commands(root: Path, measured: dict[str, float]) -> Iterator[Row]:
    """The commands as a whole, and the collection of the tests."""
    record = _read(root / "_build/logs/tests.json")
    if record:
        measured = {"make test": record["seconds"]} | measured
    for name, budget in COMMANDS.items():
        if name in measured:
            yield Row(name, measured[name], budget)
    if record:
        yield Row("collecting the tests", record["collection_seconds"], COLLECTION)
        yield Row("number of tests", len(record["tests"]), TESTS, "tests")


def tests(root: Path) -> Iterator[Row]:
    """Each test that is not marked as slow."""
    record = _read(root / "_build/logs/tests.json") or {"tests": {}, "slow": []}
    slow = set(record["slow"])
    for name, seconds in record["tests"].items():
        if name not in slow:
            yield Row(name, seconds, TEST)


def pages(root: Path) -> Iterator[Row]:
    """Each page that runs: processor seconds of its one thread on a machine of a laptop's speed."""
    for name, cost in (_read(root / "_build/html/page-costs.json") or {}).items():
        seconds = min(1.0, cost["gflops"] / GFLOPS) * cost["cpu_seconds"]
        yield Row(name, seconds, LONG_PAGES.get(name, PAGE))


def readings(root: Path) -> Iterator[Row]:
    """Each page that is read from its beginning to its end."""
    for path in sorted((root / "book").rglob("*.md")):
        name = path.relative_to(root).with_suffix("").as_posix()
        if reading.is_read_through(name):
            minutes = reading.minutes(path.read_text("utf-8"), path.parent)
            yield Row(name, minutes * MINUTE, READING)


def claims(root: Path) -> Iterator[Row]:
    """What the newest run of each benchmark measured against another library."""
    newest: dict[str, list[dict]] = {}
    for path in sorted((root / "benchmarks/results").glob("*.json")):
        newest.update(_read(path)["results"])
    for name, figures in sorted(newest.items()):
        for figure in figures:
            if figure["holds"] is not None:  # None: that machine could not measure it
                yield Row(f"{name}: {figure['what']}", figure["ratio"], figure["limit"], "ratio")


def _read(path: Path):
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


def table(root: Path, measured: dict[str, float]) -> Iterator[str]:
    """The lines of the table: the commands, and of everything else what is over."""
    yield f"{'':<70}{'took':>14}{'budget':>14}"
    yield from (row.line() for row in commands(root, measured))
    parts = {
        "pages to build": (pages(root), "make book measures them"),
        "pages to read": (readings(root), "there are none"),
        "tests that aren't marked slow": (tests(root), "a whole make test measures them"),
        "speeds beside other libraries": (claims(root), "make bench measures them"),
    }
    for title, (rows, otherwise) in parts.items():
        found = list(rows)
        over = sorted((row for row in found if row.over), key=lambda row: row.budget / row.took)
        yield ""
        if found:
            yield f"{title}: {len(over)} of {len(found):,} over the budget"
        else:
            yield f"{title}: not measured; {otherwise}"
        yield from (f"  {row.line()}" for row in over[:SHOWN])
        if len(over) > SHOWN:
            yield f"  and {len(over) - SHOWN} more"


def main(arguments: list[str]) -> int:
    measured = {}
    for argument in arguments:
        name, _, seconds = argument.partition("=")
        measured[name] = float(seconds)
    print(*table(ROOT, measured), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
