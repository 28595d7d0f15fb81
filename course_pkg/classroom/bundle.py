"""The students' copy of the course, as an archive: what they read, run and solve, and no answer.

`bundle` takes only the names in SHOWN, so that nothing else in the course's folder is in it: no
solutions, submissions, grades or secret. Checks are part of the package: students need them.

Chapter: appendix/for-instructors.
"""

import os
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from course_pkg.classroom.config_passwords import passwords
from course_pkg.classroom.release import ReleaseError, problems, require_course
from course_pkg.files import atomic_file

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
        "nbgrader_config.py",
        "pyproject.toml",
        "requirements-gpu.txt",
        "requirements.txt",
        "tools",
    }
)
BUILT = {"__pycache__", ".ipynb_checkpoints", ".DS_Store"}
SUFFIXES = (".tar.gz", ".tgz", ".zip")


def bundle(course: Path, into: Path) -> int:
    """Write the students' archive; the number of files in it.

    into: a .tar.gz, .tgz or .zip, replaced whole; its name is that of the folder inside. Raises
    ReleaseError for another suffix, outside a course's folder, if nothing is released, if
    exercises/ shows an answer or a mark of one, and if nbgrader_config.py shows a password.
    """
    require_course(course)
    suffix = next((s for s in SUFFIXES if into.name.endswith(s) and into.name != s), None)
    if suffix is None:
        raise ReleaseError(f"{into} is not an archive: expected a name ending in .tar.gz or .zip")
    names = sorted(files(course))
    released = [n for n in names if n.startswith("exercises/") and n.endswith(".ipynb")]
    if not released:
        raise ReleaseError("exercises/ has no notebook: run `make release`")
    for name in names:
        if not name.startswith("exercises/"):
            continue
        if place := next(problems(course / name, released=True), None):
            raise ReleaseError(f"{name}, {place}: delete it, and run `make release`")
    if shown := passwords(course / "nbgrader_config.py"):
        raise ReleaseError(
            f"nbgrader_config.py shows a password to students: move it from {', '.join(shown)} to "
            "~/.pgpass, or to an environment variable"
        )
    top = PurePosixPath(into.name.removesuffix(suffix))
    with atomic_file(into, 0o644) as out:
        if suffix == ".zip":
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
                for name in names:
                    archive.write(course / name, top / name)
        else:
            with tarfile.open(fileobj=out, mode="w:gz") as archive:
                for name in names:
                    archive.add(course / name, str(top / name), filter=_of_nobody)
    return len(names)


def files(course: Path) -> Iterator[str]:
    """The files of the students' copy, by relative path: those that git tracks, if there is git."""
    command = ["git", "ls-files", "-z", "--", *sorted(SHOWN)]
    git = subprocess.run(command, cwd=course, capture_output=True)
    names = git.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    if git.returncode or not names:  # no git, or this folder is not its repository
        names = [
            (Path(folder) / name).relative_to(course).as_posix()
            for folder, _, inside in os.walk(course)
            for name in inside
        ]
    for name in names:
        parts = PurePosixPath(name).parts
        path = course / name
        hidden = BUILT.intersection(parts) or name.endswith((".pyc", ".egg-info"))
        if parts[0] in SHOWN and not hidden and path.is_file() and not path.is_symlink():
            yield name


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
