"""The folder `.grading` of a course: its secret, the keys made from it, and the lock.

Only the recorder reads the secret. What others need is derived from it, each for one purpose, so
that no derived key tells anything of the secret or of another key: a checker holds the key of one
student in one assignment and nothing more.

Chapter: appendix/for-instructors.
"""

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER = ".grading"
_SECRET = re.compile(rb"[0-9a-f]{64}\n")
_REGRADE = "(every student then gets new cases: grade again with --regrade)"


class GradingFolderError(RuntimeError):
    """The folder .grading can't be used as it is; the message says why, and the mend."""


def folder(course: Path) -> Path:
    """The course's `.grading`, made if it is not there; for the eyes of its owner alone.

    Raises GradingFolderError where it is a link, or where others may enter it.
    """
    path = course / FOLDER
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise GradingFolderError(f"{path} is no folder; wanted a folder of mode 0700: move it away")
    _only_ours(path, found, "0700")
    return path


def secret(course: Path) -> bytes:
    """The course's secret, 32 bytes; drawn at the first call, and the same ever after.

    Two processes that start at once end with one secret. Raises GradingFolderError
    for a secret that others may read, or that is not 64 hex digits.
    """
    path = folder(course) / "secret"
    if not path.is_symlink() and not path.exists():
        with _flock(path.with_name("secret.lock"), fcntl.LOCK_EX):
            if not path.exists():
                write_atomically(path, secrets.token_hex(32).encode() + b"\n")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise GradingFolderError(
            f"the course's secret can't be read ({error}); grade as the user who graded first, "
            f"or remove {path} {_REGRADE}"
        ) from None
    with open(descriptor, "rb") as file:
        _only_ours(path, os.fstat(descriptor), "0600")
        text = file.read(100)
    if not _SECRET.fullmatch(text):
        raise GradingFolderError(
            f"{path} holds no secret; wanted 64 hex digits and an end of line: restore it from a "
            f"backup, or remove it {_REGRADE}"
        )
    return bytes.fromhex(text.decode())


def derived(secret: bytes, purpose: str, *parts: str) -> bytes:
    """A key of 32 bytes for one purpose: HMAC-SHA-256 over the purpose and every part.

    >>> derived(b"s", "a", "bc") == derived(b"s", "ab", "c")
    False
    """
    return hmac.new(secret, framed("course-grading", purpose, *parts), hashlib.sha256).digest()


def student_key(secret: bytes, assignment: str, student: str, hand_in: str) -> bytes:
    """The key of one hand-in's draws: what a checker is given.

    hand_in: its digest. So the same hand-in has the same cases at every regrade, and who has seen
    the cases of one hand-in knows nothing of the next one's.
    """
    return derived(secret, "student", assignment, student, hand_in)


def secret_id(secret: bytes) -> str:
    """A name for the secret that does not tell it: records of another secret are not ours."""
    return derived(secret, "id").hex()[:16]


def framed(*parts: str) -> bytes:
    """The parts as bytes that no other parts give: each with its length before it."""
    return b"".join(len(raw).to_bytes(8, "big") + raw for raw in (p.encode() for p in parts))


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file so that it is there whole or not at all, even if the power fails."""
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(directory: Path) -> None:
    """Make the names in a folder last, as its files do."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock(course: Path, doing: str) -> Iterator[None]:
    """Hold the course's lock: one grader writes at a time. doing: what is said to another.

    Raises GradingFolderError at once where it is held. It ends with the process, however that ends.
    """
    with contextlib.ExitStack() as stack:
        path = folder(course) / "lock"
        try:
            descriptor = stack.enter_context(_flock(path, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            other = path.read_text("utf-8", "replace")[:200] or "another process"
            raise GradingFolderError(
                f"this course is being graded already ({other}); wait until that has ended"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{doing}, process {os.getpid()}".encode(), 0)
        yield


@contextlib.contextmanager
def _flock(path: Path, how: int) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        try:
            yield descriptor
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # even where a fork still has it open
    finally:
        os.close(descriptor)


def _only_ours(path: Path, found: os.stat_result, mode: str) -> None:
    if os.geteuid() not in (0, found.st_uid):
        raise GradingFolderError(
            f"{path} belongs to another user; grade as the user who graded first"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise GradingFolderError(
            f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}); wanted mode "
            f"{mode}: chmod {mode} {path}, and if others may have read the secret, remove "
            f"{path.parent if mode == '0600' else path}/secret {_REGRADE}"
        )
