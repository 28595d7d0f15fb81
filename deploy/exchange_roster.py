"""Print when each student submitted, from nbgrader's exchange, as a roster for `course grade`.

    python deploy/exchange_roster.py EXCHANGE/COURSE/inbound ASSIGNMENT > roster.csv

For each student, the submission that `nbgrader collect` takes. Its time is the newest one at which
the file system recorded a change of the folder, or of anything in it. A student can't set this
time, but can set those of files and the one in the folder's name. Folders that belong to another
user than the one in their name are left out, and named on stderr. Run it on the machine of the
exchange, before its files are moved.
"""

import argparse
import csv
import pwd
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path


def submissions(inbound: Path, assignment: str) -> dict[str, list[Path]]:
    """Each student's submissions, the one that `nbgrader collect` takes last.

    inbound: holds folders STUDENT+ASSIGNMENT+TIME+RANDOM; STUDENT may contain "+".
    """
    by_student: dict[str, list[tuple[str, Path]]] = {}
    for path in sorted(inbound.iterdir()):
        student, *others = path.name.rsplit("+", 3)
        if len(others) >= 2 and others[0] == assignment:  # an earlier nbgrader's has no RANDOM
            by_student.setdefault(student, []).append((others[1], path))
    return {student: [path for _, path in sorted(those)] for student, those in by_student.items()}


def last_change(folder: Path) -> datetime:
    """When the folder or anything in it was last changed, renamed or given other rights."""
    times = [path.lstat().st_ctime for path in (folder, *folder.rglob("*"))]
    return datetime.fromtimestamp(max(times), UTC)


def submitted(
    inbound: Path, assignment: str, complain: Callable[[str], None]
) -> dict[str, datetime]:
    """The time of each student's last submission. complain: is told what is left out."""
    times = {}
    for student, paths in submissions(inbound, assignment).items():
        for path in paths:
            if path.is_symlink() or not path.is_dir():
                complain(f"{path}: not a folder")
            elif (owner := owner_of(path)) != student:
                complain(f"{path}: belongs to {owner}, not to {student}")
            else:
                times[student] = last_change(path)
    return times


def owner_of(path: Path) -> str:
    uid = path.lstat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("inbound", type=Path, help="the exchange's folder EXCHANGE/COURSE/inbound")
    parser.add_argument("assignment")
    options = parser.parse_args()
    left_out: list[str] = []
    try:
        times = submitted(options.inbound, options.assignment, left_out.append)
    except OSError as error:
        parser.error(f"{options.inbound} can't be read ({error}): give EXCHANGE/COURSE/inbound")
    for why in left_out:
        print(f"left out: {why}", file=sys.stderr)
    if not times:
        parser.error(f"{options.inbound} has no submission of {options.assignment!r}")
    write = csv.writer(sys.stdout, lineterminator="\n")
    write.writerow(["id", "submitted_at"])
    for student, when in sorted(times.items()):
        write.writerow([student, when.isoformat(timespec="seconds")])


if __name__ == "__main__":
    main()
