"""Print when each student submitted, from nbgrader's exchange, as a roster for `course grade`.

    python deploy/exchange_roster.py EXCHANGE/COURSE/inbound ASSIGNMENT > roster.csv

For each student, the submission that `nbgrader collect` takes. Its time is when the file system
last changed the folder's entry, which a student can't set; the times of files can be set, and so
can the one in the folder's name. Run it on the machine of the exchange, before its files are moved.
"""

import argparse
import csv
import sys
from datetime import UTC, datetime
from pathlib import Path


def submitted(inbound: Path, assignment: str) -> dict[str, datetime]:
    """The time of each student's last submission.

    inbound: holds folders STUDENT+ASSIGNMENT+TIME+RANDOM.
    """
    last: dict[str, Path] = {}
    for path in sorted(inbound.iterdir(), key=lambda path: path.name.split("+")[2:3]):
        parts = path.name.split("+")
        if len(parts) in (3, 4) and parts[1] == assignment and path.is_dir():
            last[parts[0]] = path
    return {
        student: datetime.fromtimestamp(path.stat().st_ctime, UTC)
        for student, path in sorted(last.items())
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("inbound", type=Path, help="the exchange's folder EXCHANGE/COURSE/inbound")
    parser.add_argument("assignment")
    options = parser.parse_args()
    try:
        found = submitted(options.inbound, options.assignment)
    except OSError as error:
        parser.error(f"{options.inbound} can't be read ({error}): give EXCHANGE/COURSE/inbound")
    if not found:
        parser.error(f"{options.inbound} has no submission of {options.assignment!r}")
    write = csv.writer(sys.stdout, lineterminator="\n")
    write.writerow(["id", "submitted_at"])
    for student, when in found.items():
        write.writerow([student, when.isoformat(timespec="seconds")])


if __name__ == "__main__":
    main()
