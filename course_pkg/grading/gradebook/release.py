"""Handing assignments out: `release` makes the students' notebooks, `start` a student's own copy.

Nothing that somebody wrote is overwritten: a student works on a copy in work/, and a release
replaces what lies in exercises/ only where that is an earlier release, untouched.

Chapter: exercises.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

RELEASED = Path("_build") / "release"
IGNORED = {".ipynb_checkpoints"}


class ReleaseError(RuntimeError):
    """An assignment can't be handed out; the message says why, and what to do."""


def release_assignment(course: Path, assignment: str) -> bool:
    """Make exercises/<assignment> from its source with nbgrader; whether it changed.

    course: the folder that holds solutions/ and exercises/. Raises ReleaseError where
    exercises/<assignment> has been changed by hand, which is then left alone, or where nbgrader
    refuses.
    """
    target, fresh = course / "exercises" / assignment, course / RELEASED / assignment
    last = _files(fresh)  # what was released last, read before it is replaced
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", "generate_assignment", assignment, "--force",
         f"--CourseDirectory.release_directory={RELEASED}"],
        cwd=course, capture_output=True, text=True, env={**os.environ, "PATH": program_path()},
    )  # fmt: skip
    if done.returncode:
        raise ReleaseError(f"nbgrader can't release solutions/{assignment}:\n{done.stderr[-2000:]}")
    found, wanted = _files(target), _files(fresh)
    if found == wanted:
        return False
    if found and found != last and not _as_committed(course, target):
        raise ReleaseError(
            f"exercises/{assignment} has been changed by hand: move your work to "
            f"work/{assignment}, then delete exercises/{assignment} or restore it with git, "
            "and release again"
        )
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(fresh, target)
    return True


def start_work(course: Path, assignment: str) -> Path:
    """Copy exercises/<assignment> to work/<assignment>, to work in; an older copy is kept as it is.

    Returns the folder. Raises ReleaseError for an unknown assignment, or a copy that lies there
    already.
    """
    source, target = course / "exercises" / assignment, course / "work" / assignment
    if not source.is_dir():
        there = sorted(p.name for p in (course / "exercises").glob("*") if p.is_dir())
        raise ReleaseError(
            f"there is no exercises/{assignment}; there are: {', '.join(there) or 'none'}"
        )
    if target.exists():
        raise ReleaseError(f"you have started already: your copy is {target}")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*IGNORED))
    return target


def program_path() -> str:
    """PATH with this environment's programs first: nbgrader starts alembic by its bare name.

    >>> program_path().split(os.pathsep)[0] == str(Path(sys.executable).parent)
    True
    """
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there; none where there is no folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and IGNORED.isdisjoint(path.parts)
    }


def _as_committed(course: Path, folder: Path) -> bool:
    """Whether git knows every file in the folder, and each is as it was committed."""
    command = ["git", "status", "--porcelain", "--ignored", "--", str(folder)]
    status = subprocess.run(command, cwd=course, capture_output=True, text=True)
    return status.returncode == 0 and not status.stdout.strip()
