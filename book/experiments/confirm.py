"""Which recorded experiments are out of date: list them, and repeat a short row of each.

    python book/experiments/confirm.py            list the records whose code or data has changed
    python book/experiments/confirm.py --run      and repeat a row of each, the shortest first
    python book/experiments/confirm.py --check    end with 1 if there is one, as before a release

A row that comes out the same shows that this row has not changed, no more: the record then says
when it was repeated. One that does not needs `--restart`, which measures all rows again.
"""

import argparse
import subprocess
import sys

from course_pkg.pages.experiments import (
    FOLDER,
    ROOT,
    Experiment,
    changed_files,
    load_experiment,
    script_sources,
)


def out_of_date() -> list[tuple[Experiment, list[str]]]:
    """The records with files that have changed, and these; those with a short probe first."""
    sources = script_sources()
    records = [load_experiment(path.stem) for path in FOLDER.glob("*.json")]
    found = [(record, changed_files(record, sources)) for record in records]
    return sorted((pair for pair in found if pair[1]), key=lambda pair: probe_seconds(pair[0]))


def probe_seconds(record: Experiment) -> float:
    """What repeating a row takes: as long as last time, else as its shortest row."""
    last = (record.confirmed or {}).get("seconds")
    return last or min(row["seconds"] for row in record.rows)


def main() -> int:
    """List, and with --run confirm; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", action="store_true", help="repeat a short row of each")
    parser.add_argument("--check", action="store_true", help="end with 1 if one is out of date")
    options = parser.parse_args()
    left = 0
    found = out_of_date()
    for record, changed in found:
        seconds = probe_seconds(record)
        print(f"{record.name:24} {seconds:6.1f} s  {', '.join(changed)}", flush=True)
    for record, _ in found if options.run else ():
        command = [sys.executable, str(ROOT / record.command.split()[-1]), "--confirm"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        print(f"{record.name:24} {'confirmed' if done.returncode == 0 else last}", flush=True)
        left += done.returncode != 0
    if not found:
        print("no record is out of date")
    return int(bool(left) if options.run else options.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
