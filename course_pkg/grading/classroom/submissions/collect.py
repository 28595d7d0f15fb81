"""Find the submissions to an assignment in a folder or a zip: one `Submission` per student.

A submission reads its files when it is asked for them, within limits. An error in one submission
shows then; only an error in the source as a whole stops the listing. If two ids differ only in
case, or in how an accent is encoded, some systems confuse them: both are refused.
"""

import unicodedata
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path

from course_pkg.common.errors import CourseError
from course_pkg.grading.classroom.submissions.layouts import (
    MOODLE,
    UnidentifiedSubmission,
    choose,
    find,
    skipped,
    stem,
)
from course_pkg.grading.classroom.submissions.names import shown, valid_student, writable
from course_pkg.grading.classroom.submissions.roster import Person, Roster, folded
from course_pkg.grading.classroom.submissions.sources import MAX_LISTED, Folder, Parts, Refused, Zip

MIB = 1024 * 1024
MAX_NOTEBOOK = 16 * MIB
MAX_BYTES = 64 * MIB  # all files of a submission
MAX_FILES = 1000  # files and folders of a submission
MAX_DEPTH = 16
MAX_NAME = 200
MAX_PATH = 800  # bytes of one name, and of a whole path
TIMESTAMP = "timestamp.txt"  # nbgrader's; a student can write it, so it is not read
MAX_NAMED = 20  # paths that were not used
EXPECTED = "<student>/{0}/{0}.ipynb, <student>.ipynb, or a zip from Moodle or Canvas"
GIVE_IDS = "give the class with --roster, which has an id for each name"


@dataclass(frozen=True)
class Files:
    """The files of a submission: the notebook's bytes, and each other file's bytes by its path."""

    notebook: bytes
    beside: dict[str, bytes]
    not_run: tuple[str, ...] = ()  # other notebooks beside it


@dataclass(frozen=True)
class Submission:
    """One student's submission. For an impossible id, `student` is the name found, escaped.

    Attributes:
        layout: of the source.
        timestamp: when it was submitted, in UTC: the roster's time if `trusted`, else that of the
            file; None if neither is known.
        person: what is known about the student besides the id.
        called: what the student, or one of a team, may be called in the notebook.
    """

    student: str
    layout: str
    _tree: Folder | Zip
    _found: UnidentifiedSubmission
    _assignment: str
    _wrong: str | None
    timestamp: datetime | None = None
    trusted: bool = False
    person: Person | None = None
    called: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return shown("/".join(self._found.path))

    @property
    def late(self) -> bool:
        return self._found.late

    def read(self) -> Files:
        """Read the files now. Raises Refused."""
        if self._wrong:
            raise Refused(self._wrong)
        paths: dict[str, Parts] = {}
        for name, at in self._found.places:
            if wrong := self._tree.problem(at):
                raise Refused(wrong)
            if name:
                require_writable(name, at)
                paths[name] = at
            else:
                paths |= {"/".join(path[len(at) :]): path for path in _walk(self._tree, at)}
        if len(paths) > MAX_FILES:
            raise Refused(f"{self.path}: {len(paths):,} files; at most {MAX_FILES:,}")
        name = choose(paths, self._assignment, self._found.exact)
        if name is None:
            raise Refused(self._no_notebook(paths))
        notebook = self._tree.read(paths.pop(name), MAX_NOTEBOOK)
        left = MAX_BYTES - len(notebook)
        files = {}
        for name, path in sorted(paths.items()):
            files[name] = self._tree.read(path, MAX_BYTES)
            left -= len(files[name])
            if left < 0:
                raise Refused(
                    f"{self.path}: the files are more than {MAX_BYTES:,} bytes together (counted "
                    f"up to {shown(name)})"
                )
        others = tuple(shown(n) for n in files if "/" not in n and stem(n) != n)
        return Files(notebook, files, others)

    def _no_notebook(self, names: Collection[str]) -> str:
        there = sorted(shown(n) for n in names if stem(n) != n)
        if not there and not self._found.exact:
            there = sorted(map(shown, names))
        named = ", ".join(there[:5]) or "no notebook"
        return f"found {named}; expected {self._assignment}.ipynb in {shown(self.path)}"


def _walk(tree: Folder | Zip, at: Parts) -> list[Parts]:
    files = []
    folders = [at]
    seen = 0
    while folders:
        here = folders.pop()
        for name, folder in sorted(tree.children(here).items()):
            if skipped(name) or (here == at and name == TIMESTAMP):
                continue
            path = (*here, name)
            seen = seen + 1
            said = shown("/".join(path))
            if seen > MAX_FILES:
                raise Refused(f"{said}: more than {MAX_FILES:,} files and folders")
            if len(path) - len(at) > MAX_DEPTH:
                raise Refused(f"{said}: more than {MAX_DEPTH} folders deep")
            if wrong := tree.problem(path):
                raise Refused(wrong)
            require_writable(name, path)
            (folders if folder else files).append(path)
    return files


def require_writable(name: str, path: Parts) -> None:
    """Raise Refused for a file name that some system can't write."""
    said = shown("/".join(path))
    if not writable(name):
        raise Refused(f"{said}: a file name that not every system can write")
    if len(name.encode()) > MAX_NAME or sum(len(p.encode()) + 1 for p in path) > MAX_PATH:
        raise Refused(f"{said[:100]}: a file name that is too long")


class SourceError(CourseError, ValueError):
    """The source of submissions can't be used at all; the message says what it holds instead."""


def collect(
    source: Path,
    assignment: str,
    students: Collection[str] = (),
    layout: str = "auto",
    roster: Roster | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Submission]:
    """The submissions to an assignment in a folder or a zip, sorted by student. Raises SourceError.

    Args:
        students: only theirs, if there are any.
        layout: one of `layouts.LAYOUTS`.
        roster: gives Moodle's and Canvas's names their ids; if it is complete, nobody else is
            accepted.
        say: is told what was looked at and not used.
    """
    tree = _open(source, assignment, roster)
    if len(tree.children(())) > MAX_LISTED:
        raise SourceError(f"{source} holds more than {MAX_LISTED:,} names")
    kind, listed, unused = find(tree, (), assignment, layout, roster)
    tops = [n for n in tree.children(()) if not skipped(n) and not tree.problem((n,))]
    if isinstance(tree, Zip) and not listed and len(tops) == 1:  # a folder that was zipped whole
        kind, listed, unused = find(tree, (tops[0],), assignment, layout, roster)
    if not listed:
        raise SourceError(_nothing(tree, source, assignment, layout))
    if unused:
        more = f", and {len(unused) - MAX_NAMED} more" if len(unused) > MAX_NAMED else ""
        named = ", ".join(map(shown, unused[:MAX_NAMED]))
        say(f"not used, since it is no submission to {assignment}: {named}{more}")
    made = _submissions(tree, listed, assignment, kind, roster)
    submissions = sorted(made, key=lambda s: (s.student, s.path))
    chosen = {unicodedata.normalize("NFC", student) for student in students}
    unknown = sorted(chosen - {s.student for s in submissions})
    if unknown:
        known = [s.student for s in submissions]
        similar = get_close_matches(unknown[0], known, n=3) or known[:5]
        raise SourceError(
            f"{source} holds no submission of {', '.join(map(shown, unknown))} to {assignment}; "
            f"similar: {', '.join(similar)}"
        )
    return [s for s in submissions if not chosen or s.student in chosen]


def _open(source: Path, assignment: str, roster: Roster | None) -> Folder | Zip:
    if not source.exists():
        parent = source.parent
        names = [p.name for p in parent.iterdir()] if parent.is_dir() else []
        near = get_close_matches(source.name, names, n=3)
        similar = f"{parent} has {', '.join(map(shown, near))}"
        expected = f"expected a folder or zip with {EXPECTED.format(assignment)}"
        raise SourceError(f"{source} does not exist; {similar if near else expected}")
    try:
        return Folder(source) if source.is_dir() else Zip(source, lambda name: _has(roster, name))
    except zipfile.BadZipFile as error:
        raise SourceError(
            f"{source} can't be read as a zip ({error}); unpack it, and give the folder instead"
        ) from None
    except (OSError, Refused) as error:
        raise SourceError(f"{source} can't be opened: {error}") from None


def _submissions(
    tree: Folder | Zip,
    listed: list[UnidentifiedSubmission],
    assignment: str,
    layout: str,
    roster: Roster | None,
) -> Iterator[Submission]:
    numbers: dict[str, set[str]] = {}  # in Moodle or Canvas, of the people of one name
    for one in listed:
        numbers.setdefault(folded(one.name), set()).add(one.lms_id)
    entries = []
    for one in listed:
        if one.skipped:
            label = f"[{shown(one.name)}]"  # never a student's id
            yield Submission(label, layout, tree, one, assignment, one.skipped)
            continue
        name, person, unknown = _identity(one, numbers, layout, roster)
        team = roster.members(one.name) if roster and unknown else []
        entries += [(one, p.id, p, None, team) for p in team] or [(one, name, person, unknown, [])]
    alike: dict[str, list[tuple[str, str]]] = {}  # ids, and how they are called there
    for one, name, *_ in entries:
        alike.setdefault(folded(name), []).append((name, one.name))
    taken = {name for _, name, *_ in entries}
    for one, name, person, unknown, team in entries:
        student = unicodedata.normalize("NFC", name)
        wrong = one.wrong or unknown
        if not valid_student(student):
            wrong = wrong or f"{shown(name)} can't be a student's id: {GIVE_IDS}"
            student = shown(name)
        elif len(same := alike[folded(name)]) > 1:
            wrong = _alike(name, same)
            student = name if student in taken else student
        when = person.submitted_at if person else None
        trusted = when is not None
        if when is None and layout in ("nbgrader", "flat") and not wrong:
            (file, at), *_ = one.places
            when = tree.modified(at if file else (*at, f"{assignment}.ipynb"))
        people = team or ([person] if person else [])
        called = tuple(text for p in people for text in p.called if text != student)
        yield Submission(
            student,
            layout,
            tree,
            one,
            assignment,
            wrong,
            when,
            trusted=trusted,
            person=person,
            called=called,
        )


def _has(roster: Roster | None, name: str) -> bool:
    if roster is None:
        return False
    match = MOODLE.fullmatch(name)
    text = match["name"] if match else stem(name)
    return bool(roster.fitting(Person(text, text)) or roster.members(text))


def _identity(
    one: UnidentifiedSubmission, numbers: dict[str, set[str]], layout: str, roster: Roster | None
) -> tuple[str, Person | None, str | None]:
    described = one.person
    person = roster.find(described) if roster else None
    if person:
        return person.id, person, None
    if roster and roster.complete:
        name = f"[{one.name} {one.lms_id}]" if one.lms_id else one.name
        return name, None, roster.unknown(described)
    if layout in ("nbgrader", "flat"):
        return one.name, None, None
    others = numbers[folded(one.name)] - {one.lms_id}
    name = f"{one.name} {one.lms_id}" if others else one.name
    first, _, last = one.name.rpartition(" ")
    return name, Person(name, first, last, lms_id=one.lms_id), None


def _alike(name: str, same: list[tuple[str, str]]) -> str:
    """How the names differ that give the same id; `same` has the ids, and what they are called."""
    student = unicodedata.normalize("NFC", name)
    names = [one for one, _ in same]
    called = sorted({shown(one) for _, one in same})
    if len(set(names)) == 1:
        how = f": {', '.join(called)}" if len(called) > 1 else ""
    elif len({unicodedata.normalize("NFC", n) for n in names}) == 1:
        how = ", but its accents are encoded in two ways (composed and decomposed Unicode)"
    else:
        how = ", except for upper and lower case"
    return f"{len(names)} submissions have the id {student}{how}"


def _nothing(tree: Folder | Zip, source: Path, assignment: str, layout: str) -> str:
    there = []
    for name, folder in sorted(tree.children(()).items())[:20]:
        inner = sorted(tree.children((name,)))[:2] if folder else []
        there += [shown(f"{name}/{i}") for i in inner] or [shown(name)]
    near = get_close_matches(assignment, there, n=5, cutoff=0.3) or there[:5]
    asked = "" if layout == "auto" else f" in the layout {layout}"
    return (
        f"{source} holds no submission to {assignment}{asked}: found "
        f"{', '.join(near) or 'nothing'}; expected {EXPECTED.format(assignment)}"
    )
