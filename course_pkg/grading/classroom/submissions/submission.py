"""One submission: where its files are, and how they are read, within limits.

Chapter: appendix/for-instructors.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from course_pkg.grading.classroom.submissions.folders import Folder, Parts, Refused
from course_pkg.grading.classroom.submissions.layouts import Found, choose, skipped, stem
from course_pkg.grading.classroom.submissions.names import shown, writable
from course_pkg.grading.classroom.submissions.roster import Person
from course_pkg.grading.classroom.submissions.zips import Zip

MIB = 1024 * 1024
MAX_NOTEBOOK = 16 * MIB
MAX_BYTES = 64 * MIB  # all files of a submission
MAX_FILES = 1000  # files and folders of a submission
MAX_DEPTH = 16
MAX_NAME = 200
MAX_PATH = 800  # bytes of one name, and of a whole path
TIMESTAMP = "timestamp.txt"  # nbgrader's; a student can write it, so it is not read


@dataclass(frozen=True)
class Files:
    """The files of a submission: the notebook's bytes, and each other file's bytes by its path."""

    notebook: bytes
    beside: dict[str, bytes]
    not_run: tuple[str, ...] = ()  # other notebooks beside it


@dataclass(frozen=True)
class Submission:
    """One student's submission. For an impossible id, `student` is the name found, escaped.

    timestamp: when it was submitted, in UTC: the roster's time if `trusted`, else that of the file;
    None if neither is known. person: what is known about the student besides the id. called: what
    the student, or one of a team, may be called in the notebook. layout: of the source.
    """

    student: str
    layout: str
    _tree: Folder | Zip
    _found: Found
    _assignment: str
    _wrong: str | None
    timestamp: datetime | None = None
    trusted: bool = False
    person: Person | None = None
    called: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Where it is in the source."""
        return shown("/".join(self._found.path))

    @property
    def late(self) -> bool:
        """Whether Canvas says that it is late."""
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
        found = ", ".join(there[:5]) or "no notebook"
        return f"found {found}; expected {self._assignment}.ipynb in {shown(self.path)}"


def _walk(tree: Folder | Zip, at: Parts) -> list[Parts]:
    """Every file of a submission. Raises Refused above the limits."""
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
