"""Release assignments: `release_assignment` makes the students' notebooks, `start_work` a copy.

Nobody's work is overwritten. nbgrader removes what is between its exact marks, and text behind a
mistyped mark would go to the students: so that is an error.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from course_pkg.common.errors import CourseError

RELEASED = Path("_build") / "release"
IGNORED = {".ipynb_checkpoints"}
EXACT = (
    "### BEGIN SOLUTION",
    "### END SOLUTION",
    "### BEGIN HIDDEN TESTS",
    "### END HIDDEN TESTS",
    "=== BEGIN MARK SCHEME ===",
    "=== END MARK SCHEME ===",
)
_PHRASES = tuple(re.sub(r"\W", "", mark).casefold() for mark in EXACT)
_BEGIN = r"(?:begin(?:ning|s)?|start(?:s|ing)?|end(?:s|ing)?|stop)"
_FILLER = r"(?:(?:of|the|my|your|model|sample|hidden|test)[\W_]+)*"
_WHAT = r"(?:solutions?|hidden[\W_]*tests?|mark(?:ing)?[\W_]*schemes?)"
_DECORATED = re.compile(
    rf"(?:^(?=\W*[#=*/<%-])|\s#)\W*+"  # also behind code
    rf"(?:{_BEGIN}[\W_]*{_FILLER}(?:{_WHAT}\b|(?:answers?|soln?)\W*$)|{_WHAT}[\W_]*{_BEGIN}\W*$)",
    re.I,
)
_ALIKE = 0.9  # of the letters: one of a mark's 11 or more is missing, wrong, or twice there
_ALIKE_BEHIND_SIGNS = 0.845  # behind ### or ===: two
_SIGNS = re.compile(r"[\s\"']*(?:##|==)")
_LATIN = str.maketrans(  # Cyrillic and Greek letters that look so
    "АВЕІКМНОРСТУХЅаеіорсухѕΑΒΕΗΙΚΜΝΟΡΤΧο", "ABEIKMHOPCTYXSaeiopcyxsABEHIKMNOPTXo"
)


class ReleaseError(CourseError, RuntimeError):
    """An assignment can't be released or copied; the message says why, and what to do."""


def release_assignment(
    course: Path, assignment: str, source: str = "solutions", release: str = "exercises"
) -> bool:
    """Make exercises/<assignment> from its source with nbgrader; whether it changed.

    If that is not possible, ReleaseError says why, and the released folder stays as it was.
    """
    _require_exact_marks(course, _folder(course, source, assignment))
    target = course / release / assignment
    fresh = course / RELEASED / assignment
    last = folder_files(fresh)  # the last release, read before it is replaced
    folder = f"--CourseDirectory.release_directory={RELEASED}"
    arguments = ("generate_assignment", assignment, "--force", folder)
    done = run_nbgrader(course, *arguments, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"nbgrader can't release {source}/{assignment}:\n{done.stderr[-2000:]}")
    present = folder_files(target)
    released = folder_files(fresh)
    if present == released:
        return False
    if present and present != last and not _as_committed(course, target):
        raise ReleaseError(
            f"{release}/{assignment} has been changed by hand: move your work to "
            f"work/{assignment}, then delete {release}/{assignment} or restore it with git, "
            "and release again"
        )
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(fresh, target)
    return True


def require_course(course: Path) -> None:
    """Raise ReleaseError unless the folder is a course's."""
    if not (course / "nbgrader_config.py").is_file():
        raise ReleaseError(f"{course} has no nbgrader_config.py: run this in the course's folder")


def _folder(course: Path, parent: str, assignment: str) -> Path:
    require_course(course)
    known = sorted({path.parent.name for path in (course / parent).glob("*/*.ipynb")})
    if assignment not in known:
        names = ", ".join(known) or "none"
        raise ReleaseError(f"there is no {parent}/{assignment}; found: {names}")
    return course / parent / assignment


def _require_exact_marks(course: Path, folder: Path) -> None:
    for name in folder_files(folder):
        path = folder / name
        if place := next(problems(path, released=False), None):
            raise ReleaseError(
                f"{path.relative_to(course)}, {place}: nbgrader does not recognize this mark, and "
                "would give students what is behind it; write, for example, ### BEGIN SOLUTION"
            )


def start_work(course: Path, assignment: str) -> Path:
    """Copy what is missing in work/<assignment> from exercises/<assignment>; the folder."""
    source = _folder(course, "exercises", assignment)
    target = course / "work" / assignment
    missing = [name for name in folder_files(source) if not (target / name).exists()]
    if not missing:
        raise ReleaseError(
            f"you have started already: your copy is {target}; to begin again, move it away"
        )
    for name in missing:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)
    return target


def program_path() -> str:
    """PATH with this environment's programs first: nbgrader starts alembic by name."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def run_nbgrader(course: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess:
    """Run an nbgrader command in the course, with the options of `subprocess.run`."""
    env = {**os.environ, "PATH": program_path()}
    return subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments], cwd=course, env=env, **options
    )


def folder_files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path in it; {} if there is no such folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and IGNORED.isdisjoint(path.parts)
    }


def _as_committed(course: Path, folder: Path) -> bool:
    command = ["git", "status", "--porcelain", "--ignored", "--", str(folder)]
    status = subprocess.run(command, cwd=course, capture_output=True, text=True)
    return status.returncode == 0 and not status.stdout.strip()


def mistyped(line: str) -> bool:
    """Whether a line looks like a mark and has none that nbgrader recognizes.

    Example:

        >>> [mistyped(f"{sign} SOLUTION") for sign in ("### BEGIN", "###  BEGIN", "# begin")]
        [False, True, True]
    """
    if any(mark in line for mark in EXACT):
        return False
    line = unicodedata.normalize("NFKC", line).strip().translate(_LATIN)
    if _DECORATED.search(line):
        return True
    letters = re.sub(r"[\W_]", "", line).casefold()
    if not 8 <= len(letters) <= 24:
        return False
    least = _ALIKE_BEHIND_SIGNS if _SIGNS.match(line) else _ALIKE
    return any(SequenceMatcher(None, letters, one).ratio() >= least for one in _PHRASES)


def problems(path: Path, released: bool) -> Iterator[str]:
    """Lines of a file that must not stay, each with its place.

    Args:
        released: whether students get the file; then nbgrader's exact marks must not stay either.
    """
    for where, number, line in _lines(path):
        shown = released and any(mark in line for mark in EXACT)
        if shown or mistyped(line):
            yield f"{where}line {number}: {line.strip()[:100]!r}"


def _lines(path: Path) -> Iterator[tuple[str, int, str]]:
    """The lines of a file: the cell with a comma, or "", then the number and the text."""
    data = path.read_bytes()
    sources = None
    if path.suffix == ".ipynb":
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # or it is read as text
            sources = ["".join(cell.get("source", "")) for cell in json.loads(data)["cells"]]
    if sources is None:
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            yield "", number, line
        return
    for index, text in enumerate(sources, 1):
        for number, line in enumerate(text.splitlines(), 1):
            yield f"cell {index}, ", number, line
