"""The students' copy of the course, as an archive: what they read, run and solve, and no answer.

Only the names in SHOWN are in it. Your nbgrader_config.py may hold a password, so students get an
example instead.
"""

import os
import re
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from course_pkg.common.files import atomic_file
from course_pkg.grading.classroom.release import ReleaseError, problems, require_course

SHOWN = frozenset(
    {
        ".gitattributes",
        ".gitignore",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "LICENSE-prose",
        "Makefile",
        "README.md",
        "_config.yml",
        "_toc.yml",
        "benchmarks",
        "book",
        "course_pkg",
        "exercises",
        "pyproject.toml",
        "requirements-gpu.txt",
        "requirements.txt",
        "tools",
    }
)
BUILT = {"__pycache__", ".ipynb_checkpoints", ".DS_Store"}
SUFFIXES = (".tar.gz", ".tgz", ".zip")
CONFIG = "nbgrader_config.py"
EXAMPLE = Path(__file__).resolve().parents[2] / "data" / "nbgrader" / "nbgrader_config.example"
SITE = PurePosixPath("_build", "html")
# Names of files that are private, wherever they are; without git, nothing else tells.
PRIVATE = re.compile(
    r"\..*|.*\.(env|pem|key|p12|pfx|ppk|kdbx|db|sqlite3?|zip|tgz|gz|tar|7z|swp|bak)|.*~|id_[a-z0-9]+"
    r"|.*(roster|worksheet|gradebook|grades|secret|credential|password).*\.(csv|tsv|xlsx?|ods|txt)",
    re.I,
)

# A user, or a password, in an address; or a password among its parameters.
_SECRET = re.compile(
    r"""\b(?:https?://(?=[^\s/@"'<>]+@)|[\w+.-]+://[^\s/:@"'<>]*:(?=[^\s/@"'<>]+@)"""
    r"""|[\w+.-]+://[^\s"'<>]*[?&](?:password|token)=)([^\s/@"'<>&]+)""",
    re.I,
)
_VARIABLE = re.compile(r"[^@]*\$[{(]?\w+[)}]?")


@dataclass(frozen=True)
class Bundled:
    """The number of files written, and those that a student might expect and didn't get."""

    count: int
    left_out: tuple[str, ...] = ()


def bundle(course: Path, into: Path, site: bool = False) -> Bundled:
    """Write the students' archive: a .tar.gz, .tgz or .zip, replaced whole.

    Args:
        into: its name, without the suffix, is that of the folder inside.
        site: whether the built book is in it.
    """
    require_course(course)
    suffix = next((s for s in SUFFIXES if into.name.endswith(s) and into.name != s), None)
    if suffix is None:
        raise ReleaseError(f"{into} is not an archive: expected a name ending in .tar.gz or .zip")
    shown, left_out = files(course)
    names = sorted(shown)
    released = [name for name in names if name.startswith("exercises/")]
    if not any(name.endswith(".ipynb") for name in released):
        raise ReleaseError("exercises/ has no notebook: run `make release`")
    for name in released:
        if place := next(problems(course / name, released=True), None):
            raise ReleaseError(f"{name}, {place}: delete it, and run `make release`")
    for name in names:
        if "/" not in name and (lines := lines_with_addresses(course / name)):
            raise ReleaseError(
                f"{name}, line {lines[0]}: an address with a user or a password, which students "
                "would see: move it to ~/.netrc, to pip's settings, or to an environment variable"
            )
    if linked := _hard_links(course, names):
        raise ReleaseError(
            f"{linked[0]} is a hard link to a file that students don't get: copy the file instead"
        )
    if site:
        if not (course / SITE / "index.html").is_file():
            raise ReleaseError(
                f"there is no {SITE}/index.html: run `make book`, or leave out --site"
            )
        names += [name for name in _walk(course, str(SITE)) if _is_shown(course, name)]
    paths = {name: course / name for name in names} | {CONFIG: EXAMPLE}
    top = PurePosixPath(into.name.removesuffix(suffix))
    with atomic_file(into, 0o644) as out:
        if suffix == ".zip":
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, path in paths.items():
                    archive.write(path, top / name)
        else:
            with tarfile.open(fileobj=out, mode="w:gz") as archive:
                for name, path in paths.items():
                    archive.add(path, str(top / name), filter=_of_nobody)
    return Bundled(len(paths), tuple(sorted(left_out)))


def files(course: Path) -> tuple[list[str], list[str]]:
    """The files of the students' copy, and those that are left out, by relative path.

    With git, what it ignores is in neither; without, the names tell which files are private.
    """
    is_shown = partial(_is_shown, course)
    tracked = _git_files(course)
    if tracked:  # else there is no git, or this folder is not its repository
        others = _git_files(course, "--others", "--exclude-standard")
        return list(filter(is_shown, tracked)), list(filter(is_shown, others))
    names = [name for top in sorted(SHOWN) for name in _walk(course, top) if is_shown(name)]
    private = {n for n in names if n not in SHOWN and PRIVATE.fullmatch(PurePosixPath(n).name)}
    return [name for name in names if name not in private], sorted(private)


def _git_files(course: Path, *which: str) -> list[str]:
    command = ["git", "ls-files", "-z", *which, "--", *sorted(SHOWN)]
    git = subprocess.run(command, cwd=course, capture_output=True)
    names = git.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return [] if git.returncode else names


def _walk(course: Path, top: str) -> list[str]:
    if not (course / top).is_dir():
        return [top] if (course / top).exists() else []
    return [
        (Path(folder) / name).relative_to(course).as_posix()
        for folder, _, inside in os.walk(course / top)
        for name in inside
    ]


def _is_shown(course: Path, name: str) -> bool:
    path = course / name
    built = BUILT.intersection(PurePosixPath(name).parts) or name.endswith((".pyc", ".egg-info"))
    return not built and path.is_file() and not path.is_symlink()


def lines_with_addresses(path: Path) -> list[int]:
    """The numbers of a file's lines with a web address that names a user, or has a password."""
    lines = path.read_text("utf-8", "replace").splitlines()
    return [
        number
        for number, line in enumerate(lines, 1)
        if any(not _VARIABLE.fullmatch(secret) for secret in _SECRET.findall(line))
    ]


def _hard_links(course: Path, names: list[str]) -> list[str]:
    """Files that are also a file of the course that students don't get."""
    stats = {name: (course / name).stat() for name in names}
    linked = {(s.st_dev, s.st_ino): name for name, s in stats.items() if s.st_nlink > 1}
    if not linked:
        return []
    clashes = []
    for folder, _, inside in os.walk(course):
        for path in (Path(folder) / name for name in inside):
            stat = path.lstat()
            name = linked.get((stat.st_dev, stat.st_ino))
            if name and path.relative_to(course).as_posix() not in stats:
                clashes.append(name)
    return clashes


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
