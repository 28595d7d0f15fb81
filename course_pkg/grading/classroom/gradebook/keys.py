"""The folder `.grading` of a course: its secret, the keys derived from it, and the grader's lock.

Only the grader's main process reads the secret. Every other key is derived from it for one
purpose, and reveals neither the secret nor another key.
"""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from course_pkg.common.errors import CourseError
from course_pkg.common.files import lock, write_atomically
from course_pkg.grading.classroom.execution.grade_key import length_prefixed

FOLDER = ".grading"
_SECRET = re.compile(rb"[0-9a-f]{64}\n")
_REGRADE = "(every student then gets new cases: grade again with --regrade)"


class GradingFolderError(CourseError, RuntimeError):
    """The folder .grading can't be used as it is; the message says why, and how to fix it."""


def grading_folder(course: Path) -> Path:
    """The course's `.grading`, created if it does not exist; only its owner can enter it."""
    path = course / FOLDER
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise GradingFolderError(
            f"{path} is not a folder; expected a folder of mode 0700: move it away"
        )
    _require_private(path, info, "0700")
    return path


def secret(course: Path) -> bytes:
    """The course's secret, 32 bytes: drawn at the first call, and the same at every later one."""
    path = grading_folder(course) / "secret"
    if not path.is_symlink() and not path.exists():
        with lock(path.with_name("secret.lock")):
            if not path.exists():
                write_atomically(path, secrets.token_hex(32) + "\n", 0o600)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise GradingFolderError(
            f"the course's secret can't be read ({error}); grade as the user who graded first, "
            f"or remove {path} {_REGRADE}"
        ) from None
    with open(descriptor, "rb") as file:
        _require_private(path, os.fstat(descriptor), "0600")
        text = file.read(100)
    if not _SECRET.fullmatch(text):
        raise GradingFolderError(
            f"{path} holds no secret; expected 64 hex digits and a newline: restore it from a "
            f"backup, or remove it {_REGRADE}"
        )
    return bytes.fromhex(text.decode())


def derived_key(secret: bytes, purpose: str, *parts: str) -> bytes:
    """A key of 32 bytes for one purpose: HMAC-SHA-256 of the purpose and every part."""
    message = length_prefixed("course-grading", purpose, *parts)
    return hmac.new(secret, message, hashlib.sha256).digest()


def submission_key(secret: bytes, assignment: str, student: str, digest: str) -> bytes:
    """The key that seeds the cases of one submission; its checker gets this key alone.

    The same submission gets the same cases at every regrade, and a student who has seen the cases
    of one submission can't predict those of the next.
    """
    return derived_key(secret, "student", assignment, student, digest)


def digest(notebook: bytes, beside: Mapping[str, bytes]) -> str:
    """SHA-256 of a submission: its notebook and every other file, each with its name and length."""
    hasher = hashlib.sha256()
    for name, data in [("", notebook), *sorted(beside.items())]:
        hasher.update(length_prefixed(name, str(len(data))))
        hasher.update(data)
    return hasher.hexdigest()


def secret_id(secret: bytes) -> str:
    """A public name for the secret, 16 hex digits: results of another secret are out of date."""
    return derived_key(secret, "id").hex()[:16]


@contextlib.contextmanager
def course_lock(course: Path, doing: str) -> Iterator[None]:
    """Hold the course's lock, so that one grader writes at a time; it ends with the process.

    Raises GradingFolderError at once if another process, told as what it is `doing`, holds it.
    """
    path = grading_folder(course) / "lock"
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(lock(path, wait=False))
        except BlockingIOError:
            other = path.read_text("utf-8", "replace")[:200] or "another process"
            raise GradingFolderError(
                f"this course is being graded already ({other}); wait until that has ended"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{doing}, process {os.getpid()}".encode(), 0)
        yield


def _require_private(path: Path, info: os.stat_result, mode: str) -> None:
    if os.geteuid() not in (0, info.st_uid):
        raise GradingFolderError(
            f"{path} belongs to another user; grade as the user who graded first"
        )
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise GradingFolderError(
            f"{path} is open to other users (mode {stat.S_IMODE(info.st_mode):04o}); expected "
            f"mode {mode}: run `chmod {mode} {path}`; if others may have read the secret, remove "
            f"{path.parent if mode == '0600' else path}/secret {_REGRADE}"
        )
