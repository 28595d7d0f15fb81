"""Find the submissions to an assignment in a folder or a zip: one `Submission` per student.

Two layouts are accepted: nbgrader's, <student>/<assignment>/<assignment>.ipynb with data beside it,
and a flat folder of <student>.ipynb. An error in one submission shows when that one is read; only
an error in the source as a whole stops the listing. If two ids differ only in case, or in how an
accent is encoded, some systems confuse them: both are refused.

Chapter: appendix/for-instructors.
"""

import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

from .folders import MAX_LISTED, Folder, Parts, Refused
from .names import shown, valid_student, writable
from .zips import Zip

MIB = 1024 * 1024
MAX_NOTEBOOK = 16 * MIB
MAX_BYTES = 64 * MIB  # all files of a submission
MAX_FILES = 1000  # files and folders of a submission
MAX_DEPTH = 16
MAX_NAME, MAX_PATH = 200, 800  # bytes of one name, and of a whole path
TIMESTAMP = "timestamp.txt"  # written by nbgrader
_NOT_DATA = {".ipynb_checkpoints", "__MACOSX", ".DS_Store", "Thumbs.db", "Icon\r"}


class SourceError(ValueError):
    """The source of submissions can't be used at all; the message says what it holds instead."""


@dataclass(frozen=True)
class Files:
    """The files of a submission: the notebook's bytes, and each other file's bytes by its path."""

    notebook: bytes
    beside: dict[str, bytes]


@dataclass(frozen=True)
class Submission:
    """One student's submission. For an impossible id, `student` is the name found, escaped.

    path: where it is in the source. timestamp: when nbgrader collected it, in UTC, if a
    timestamp.txt says so.
    """

    student: str
    path: str
    timestamp: datetime | None
    _tree: Folder | Zip
    _at: Parts
    _notebook: str
    _wrong: str | None

    def read(self) -> Files:
        """Read the files now. Raises Refused."""
        if self._wrong:
            raise Refused(self._wrong)
        if not self._notebook:
            return Files(self._tree.read(self._at, MAX_NOTEBOOK), {})
        if wrong := self._tree.problem(self._at):
            raise Refused(wrong)
        paths = _walk(self._tree, self._at)
        if (*self._at, self._notebook) not in paths:
            there = [shown(path[-1]) for path in paths if path[-1].lower().endswith(".ipynb")]
            found = ", ".join(sorted(there)[:5]) or "no notebook"
            raise Refused(f"found {found}; expected {self._notebook} in {shown(self.path)}/")
        left, files = MAX_BYTES, {}
        for path in paths:
            notebook = path == (*self._at, self._notebook)
            data = self._tree.read(path, min(left, MAX_NOTEBOOK) if notebook else left)
            left -= len(data)
            files["/".join(path[len(self._at) :])] = data
        return Files(files.pop(self._notebook), files)


def collect(source: Path, assignment: str, students: Collection[str] = ()) -> list[Submission]:
    """The submissions to an assignment, sorted by student; only those of `students`, if any.

    source: a folder or a zip. Raises SourceError.
    """
    tree = _open(source)
    found = _layout(tree, (), source, assignment)
    tops = [n for n in tree.children(()) if not _skipped(n) and not tree.problem((n,))]
    if isinstance(tree, Zip) and not found and len(tops) == 1:  # a folder that was zipped whole
        found = _layout(tree, (tops[0],), source, assignment)
    if not found:
        raise SourceError(_nothing(tree, source, assignment))
    submissions = sorted(_submissions(tree, found, assignment), key=lambda s: (s.student, s.path))
    chosen = {unicodedata.normalize("NFC", student) for student in students}
    unknown = sorted(chosen - {s.student for s in submissions})
    if unknown:
        known = [s.student for s in submissions]
        near = get_close_matches(unknown[0], known, n=3) or known[:5]
        raise SourceError(
            f"{source} holds no submission of {', '.join(map(shown, unknown))} to {assignment}; "
            f"similar: {', '.join(near)}"
        )
    return [s for s in submissions if not chosen or s.student in chosen]


def _open(source: Path) -> Folder | Zip:
    if not source.exists():
        parent = source.parent
        names = [p.name for p in parent.iterdir()] if parent.is_dir() else []
        near = get_close_matches(source.name, names, n=3) or sorted(names)[:5]
        raise SourceError(f"{source} does not exist; in {parent}: {', '.join(near) or 'nothing'}")
    try:
        return Folder(source) if source.is_dir() else Zip(source)
    except zipfile.BadZipFile as error:
        raise SourceError(
            f"{source} can't be read as a zip ({error}); unpack it, and give the folder instead"
        ) from None
    except (OSError, Refused) as error:
        raise SourceError(f"{source} can't be opened: {error}") from None


def _layout(tree: Folder | Zip, base: Parts, source: Path, assignment: str) -> list[Parts]:
    """The paths of the submissions: students' folders, or notebooks; [] if there are none."""
    names = tree.children(base)
    if len(names) > MAX_LISTED:
        raise SourceError(f"{source} holds more than {MAX_LISTED:,} names")
    nested, flat, either = [], [], []
    for name, folder in names.items():
        if _skipped(name):
            continue
        if tree.problem((*base, name)):
            either.append((*base, name))  # a link or an unsafe path: never opened
        elif _stem(name) != name:
            flat.append((*base, name))
        elif folder and _near(tree.children((*base, name)), assignment):
            nested.append((*base, name))
    if nested and flat:
        raise SourceError(
            f"{source} mixes two layouts: {shown(nested[0][-1])}/{assignment}/ and "
            f"{shown(flat[0][-1])}; expected only one of them"
        )
    alike = any(_stem(at[-1]) != at[-1] for at in either)
    return [*nested, *flat, *either] if nested or flat or alike else []


def _near(names: Collection[str], assignment: str) -> list[str]:
    """The names in a student's folder that are the assignment's, or almost."""

    def bare(name: str) -> str:
        return re.sub(r"[\W_]", "", _stem(name).casefold())

    exact = [name for name in names if name == assignment]
    return exact or [name for name in names if bare(name) == bare(assignment)]


def _submissions(tree: Folder | Zip, found: list[Parts], assignment: str) -> Iterator[Submission]:
    raw = {at: _stem(at[-1]) for at in found}
    same = Counter(unicodedata.normalize("NFC", name).casefold() for name in raw.values())
    taken = set(raw.values())
    for at, name in raw.items():
        flat, folder = at[-1] != name, "/".join((*at, assignment))
        student = unicodedata.normalize("NFC", name)
        wrong = tree.problem(at)
        if not wrong and not flat:
            there = tree.children(at)
            near = _near(there, assignment)
            odd = [tree.problem((*at, n)) for n in there if n in ("", ".", "..")]
            if odd:
                wrong = odd[0]
            elif near and near != [assignment]:
                names = ", ".join(shown("/".join((*at[-1:], n))) for n in near)
                wrong = f"found {names}; expected {shown(at[-1])}/{assignment}/{assignment}.ipynb"
        if not valid_student(student):
            student, wrong = shown(name), wrong or f"{shown(name)} can't be a student's id"
        elif same[student.casefold()] > 1:
            wrong = f"{same[student.casefold()]} submissions have the id {student}, except for case"
            student = name if student in taken else student
        if flat:
            yield Submission(student, shown("/".join(at)), None, tree, at, "", wrong)
        else:
            place, wanted = (*at, assignment), f"{assignment}.ipynb"
            when = None if wrong else _timestamp(tree, place)
            yield Submission(student, shown(folder), when, tree, place, wanted, wrong)


def _walk(tree: Folder | Zip, at: Parts) -> list[Parts]:
    """Every file of a submission. Raises Refused above the limits."""
    files, folders, seen = [], [at], 0
    while folders:
        here = folders.pop()
        for name, folder in sorted(tree.children(here).items()):
            if _skipped(name) or (here == at and name == TIMESTAMP):
                continue
            path, seen = (*here, name), seen + 1
            said = shown("/".join(path))
            if seen > MAX_FILES or len(path) - len(at) > MAX_DEPTH:
                raise Refused(f"{said}: more than {MAX_FILES:,} files, or {MAX_DEPTH} folders deep")
            if wrong := tree.problem(path):
                raise Refused(wrong)
            if not writable(name):
                raise Refused(f"{said}: a file name that not every system can write")
            if len(name.encode()) > MAX_NAME or sum(len(p.encode()) + 1 for p in path) > MAX_PATH:
                raise Refused(f"{said[:100]}: a file name that is too long")
            (folders if folder else files).append(path)
    return files


def _timestamp(tree: Folder | Zip, at: Parts) -> datetime | None:
    """nbgrader's `2015-02-02 15:58:23.948203 America/New_York`, or ISO format; else None."""
    with suppress(ValueError, KeyError, OverflowError, OSError):
        text = tree.read((*at, TIMESTAMP), 100).decode().strip()
        parts = text.split(" ")
        if parts[2:] and parts[2] not in available_timezones():
            return None  # ZoneInfo would look for a file of that name
        zone = ZoneInfo(parts.pop()) if len(parts) == 3 else UTC
        when = datetime.fromisoformat(" ".join(parts))
        return (when if when.tzinfo else when.replace(tzinfo=zone)).astimezone(UTC)
    return None


def _stem(name: str) -> str:
    """A notebook's name without `.ipynb` or `.IPYNB`; any other name unchanged."""
    return name[:-6] if name.lower().endswith(".ipynb") else name


def _skipped(name: str) -> bool:
    return name in _NOT_DATA or name.startswith("._")


def _nothing(tree: Folder | Zip, source: Path, assignment: str) -> str:
    there = []
    for name, folder in sorted(tree.children(()).items())[:20]:
        inner = sorted(tree.children((name,)))[:2] if folder else []
        there += [shown(f"{name}/{i}") for i in inner] or [shown(name)]
    near = get_close_matches(assignment, there, n=5, cutoff=0.3) or there[:5]
    return (
        f"{source} holds no submission to {assignment}: found {', '.join(near) or 'nothing'}; "
        f"expected <student>/{assignment}/{assignment}.ipynb, or <student>.ipynb"
    )
