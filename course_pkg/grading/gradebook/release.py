"""Release assignments: `release_assignment` makes the students' notebooks, `start_work` a copy.

Nobody's work is overwritten: students work on a copy in work/, and a release replaces a folder in
exercises/ only if it is an earlier release without changes.

Chapter: exercises.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .marks import problems

RELEASED = Path("_build") / "release"
IGNORED = {".ipynb_checkpoints"}


class ReleaseError(RuntimeError):
    """An assignment can't be released or copied; the message says why, and what to do."""


def release_assignment(
    course: Path, assignment: str, source: str = "solutions", release: str = "exercises"
) -> bool:
    """Make exercises/<assignment> from its source with nbgrader; whether it changed.

    course: the folder that holds the folders `source` and `release`. Raises ReleaseError if there
    is no such source or a mark in it is mistyped (nothing is written then), if nbgrader fails, or
    if the released folder was changed by hand; it is not touched then.
    """
    require_source(course, assignment, source)
    _require_exact_marks(course, course / source / assignment)
    target, fresh = course / release / assignment, course / RELEASED / assignment
    last = _files(fresh)  # the last release, read before it is replaced
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", "generate_assignment", assignment, "--force",
         f"--CourseDirectory.release_directory={RELEASED}"],
        cwd=course, capture_output=True, text=True, env={**os.environ, "PATH": program_path()},
    )  # fmt: skip
    if done.returncode:
        raise ReleaseError(f"nbgrader can't release {source}/{assignment}:\n{done.stderr[-2000:]}")
    found, released = _files(target), _files(fresh)
    if found == released:
        return False
    if found and found != last and not _as_committed(course, target):
        raise ReleaseError(
            f"{release}/{assignment} has been changed by hand: move your work to "
            f"work/{assignment}, then delete {release}/{assignment} or restore it with git, "
            "and release again"
        )
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(fresh, target)
    return True


def require_course(course: Path) -> None:
    """Raises ReleaseError if the folder is no course's."""
    if not (course / "nbgrader_config.py").is_file():
        raise ReleaseError(f"{course} has no nbgrader_config.py: run this in the course's folder")


def require_source(course: Path, assignment: str, source: str = "solutions") -> None:
    """Raises ReleaseError if the folder is no course's, or has no source of that assignment."""
    require_course(course)
    known = sorted(path.parent.name for path in (course / source).glob("*/*.ipynb"))
    if assignment not in known:
        found = ", ".join(dict.fromkeys(known)) or "none"
        raise ReleaseError(f"there is no {source}/{assignment}; found: {found}")


def _require_exact_marks(course: Path, folder: Path) -> None:
    """Raise ReleaseError for a mark around a solution that nbgrader would not recognize."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or not IGNORED.isdisjoint(path.parts):
            continue
        for place in problems(path, released=False):
            raise ReleaseError(
                f"{path.relative_to(course)}, {place}: nbgrader does not recognize this mark, and "
                "would give students what is behind it; write, for example, ### BEGIN SOLUTION"
            )


def start_work(course: Path, assignment: str) -> Path:
    """Copy exercises/<assignment> to work/<assignment>; an existing copy is never replaced.

    Returns the folder. Raises ReleaseError for an unknown assignment, or if a copy exists.
    """
    require_course(course)
    source, target = course / "exercises" / assignment, course / "work" / assignment
    if not source.is_dir():
        there = sorted(p.name for p in (course / "exercises").glob("*") if p.is_dir())
        raise ReleaseError(
            f"there is no exercises/{assignment}; found: {', '.join(there) or 'none'}"
        )
    if target.exists():
        raise ReleaseError(f"you have started already: your copy is {target}")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*IGNORED))
    return target


def program_path() -> str:
    """PATH with this environment's programs first: nbgrader starts alembic by name.

    >>> program_path().split(os.pathsep)[0] == str(Path(sys.executable).parent)
    True
    """
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path in it; {} if there is no such folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and IGNORED.isdisjoint(path.parts)
    }


def _as_committed(course: Path, folder: Path) -> bool:
    """Whether git tracks every file in the folder, and none has changed."""
    command = ["git", "status", "--porcelain", "--ignored", "--", str(folder)]
    status = subprocess.run(command, cwd=course, capture_output=True, text=True)
    return status.returncode == 0 and not status.stdout.strip()
