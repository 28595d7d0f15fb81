"""Write files whole, lock them between processes, print sizes: by the standard library alone."""

import errno
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

_RUST_NUMBER = re.compile(r"\(os error (\d{1,5})\)$")
FRESH_S = 60  # seconds for a process to lock the folder that it has made


def disk_is_full(error: BaseException) -> bool:
    """Whether an error says that the disk, or this user's share of it, is full.

    >>> disk_is_full(OSError(errno.ENOSPC, "")), disk_is_full(PermissionError(errno.EPERM, ""))
    (True, False)
    """
    return system_error_number(error) in (errno.ENOSPC, errno.EDQUOT)


def system_error_number(error: BaseException) -> int | None:
    """The operating system's number of an error, as in `errno`; None for errors of other kinds.

    Libraries in Rust, such as safetensors, have no field for it: it stands at the end of their
    message, also where that is passed on in an OSError.

    >>> system_error_number(RuntimeError("IO error: it is full (os error 28)")) == errno.ENOSPC
    True
    >>> system_error_number(OSError("cannot be written (os error 28)")) == errno.ENOSPC
    True
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = _RUST_NUMBER.search(str(error))
    return int(match[1]) if match else None


@contextmanager
def atomic_file(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Open a new binary file that replaces `path` when the block ends without an error.

    A reader sees the old file or the new one, never a partial file, even after a power failure.

    Args:
        mode: permission bits of the new file; by default those that `open` gives.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_unfinished(path: Path) -> None:
    """Delete the new files of `atomic_file` that killed processes left beside a path.

    Call it only while no process writes the path.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, ".a.0123456789abcdef.part").write_bytes(b"par")
    ...     remove_unfinished(Path(folder, "a"))
    ...     list(Path(folder).iterdir())
    []
    """
    for left in path.parent.glob(f".{escape(path.name[:100])}.{'[0-9a-f]' * 16}.part"):
        left.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes | str, mode: int | None = None) -> None:
    """Replace the content of a file in one step, as `atomic_file` does; text is UTF-8."""
    with atomic_file(path, mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure, as `os.fsync` does for a file's bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock(path: Path, *, wait: bool = True, mode: int = 0o600) -> Iterator[int]:
    """Hold an exclusive lock on a file, created if absent, and yield its open descriptor.

    The lock is released when the block ends or the process dies, so a dead process blocks nobody.

    Args:
        wait: until another holder is done; if False, raise BlockingIOError at once.
        mode: permission bits of the lock file; 0o666 lets every user of the machine take the lock.
    """
    import fcntl  # a browser's Python lacks it

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        with suppress(PermissionError):  # another user's file keeps its mode
            os.fchmod(descriptor, mode)
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield descriptor
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # even if a forked process has the file open
    finally:
        os.close(descriptor)


@contextmanager
def private_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder of this process, removed at the end of the block.

    Folders of the same prefix whose process was killed are removed first: each folder is locked by
    the process that made it.
    """
    import fcntl

    for old in Path(tempfile.gettempdir()).glob(f"{escape(prefix)}*"):
        with suppress(OSError):
            if old.lstat().st_uid != os.getuid() or time.time() - old.stat().st_ctime < FRESH_S:
                continue
            descriptor = os.open(old, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
            finally:
                os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as made:
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(made)
        finally:
            os.close(descriptor)


def readable_size(count: float) -> str:
    """A number of bytes to three significant digits, in units of powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if float(f"{count:.3g}") < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:g} TB"
