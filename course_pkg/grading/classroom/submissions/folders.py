"""Read submissions from a folder: links are not followed, pipes and devices are not opened.

Each name of a path is opened relative to the descriptor of the folder before it, so a file that is
replaced between looking and reading can't lead elsewhere. `zips.Zip` has the same methods.

Chapter: appendix/for-instructors.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from course_pkg.grading.classroom.submissions.names import shown

MAX_LISTED = 20_000  # names to list in one folder
_CHUNK = 64 * 1024
KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

Parts = tuple[str, ...]


class Refused(ValueError):
    """A submission that is not accepted; the message says what was found and expected."""


class Folder:
    """The submissions in a folder. Raises OSError if it is not one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with self._opened(()):
            pass

    def children(self, folder: Parts) -> dict[str, bool]:
        """The names in a folder, and whether each is a folder; {} if there is no such folder.

        Stops after MAX_LISTED + 1 names, so the caller can see that there are too many.
        """
        with suppress(OSError, Refused), self._opened(folder) as fd, os.scandir(fd) as entries:
            some = islice(entries, MAX_LISTED + 1)
            return {entry.name: entry.is_dir(follow_symlinks=False) for entry in some}
        return {}

    def problem(self, path: Parts) -> str | None:
        """Why the file or folder can't be read, as far as opening it shows it."""
        try:
            with self._opened(path):
                return None
        except Refused as error:
            return str(error)
        except OSError as error:
            return f"{shown('/'.join(path))} can't be read ({error.strerror})"

    def read(self, path: Parts, limit: int) -> bytes:
        """The bytes of a regular file, at most `limit`. Raises Refused."""
        try:
            with self._opened(path) as fd:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise Refused(f"{shown('/'.join(path))} is a folder; expected a file")
                if found.st_nlink > 1:
                    raise Refused(f"{shown('/'.join(path))} is a hard link; submit the file itself")
                with open(fd, "rb", closefd=False) as file:
                    return read_bounded(file, limit, path)
        except OSError as error:
            raise Refused(f"{shown('/'.join(path))} can't be read ({error.strerror})") from None

    def modified(self, path: Parts) -> datetime | None:
        """When the file was last modified, in UTC; None if that can't be found out."""
        with suppress(OSError, Refused, OverflowError, ValueError), self._opened(path) as fd:
            return datetime.fromtimestamp(os.fstat(fd).st_mtime, UTC)
        return None

    @contextmanager
    def _opened(self, path: Parts) -> Iterator[int]:
        """A descriptor of a file or folder, opened name by name without following links."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for i, name in enumerate(path):
                mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                _require_plain(mode, path[: i + 1])
                inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
                os.close(fd)
                fd = inner
            _require_plain(os.fstat(fd).st_mode, path)  # it may have been replaced since
            yield fd
        finally:
            os.close(fd)


def _require_plain(mode: int, path: Parts) -> None:
    kind = KINDS.get(stat.S_IFMT(mode))
    if kind:
        raise Refused(f"{shown('/'.join(path))} is {kind}; expected plain files and folders")


def read_bounded(file: BinaryIO, limit: int, path: Parts) -> bytes:
    """The content of an open file, counted while it is read. Raises Refused above `limit` bytes."""
    data = bytearray()
    while chunk := file.read(_CHUNK):
        data += chunk
        if len(data) > limit:
            raise Refused(f"{shown('/'.join(path))} is too large: more than {limit:,} bytes")
    return bytes(data)
