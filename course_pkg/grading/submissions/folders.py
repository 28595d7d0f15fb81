"""A folder of hand-ins, read as hostile: no link is followed, no pipe is waited for.

Every step is taken by a descriptor from the one before, so what is exchanged between looking and
reading can't lead elsewhere. `zips.Zip` looks the same. What a hand-in is, `intake` knows.

Chapter: appendix/for-instructors.
"""

import os
import stat
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from .names import shown

MAX_LISTED = 20_000  # names in one folder that are looked at
_CHUNK = 64 * 1024
KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
          stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}  # fmt: skip

Parts = tuple[str, ...]


class Refused(ValueError):
    """A hand-in that is not accepted; the message says what was found and what is wanted."""


class Folder:
    """Hand-ins in a folder. Raises OSError if it is none."""

    def __init__(self, root: Path) -> None:
        self.root = root
        os.close(self._open(()))

    def children(self, folder: Parts) -> dict[str, bool]:
        """The names in a folder, and whether each is a folder itself; {} where there is none.

        Of more than MAX_LISTED names, one more than that many come back.
        """
        try:
            fd = self._open(folder)
        except (OSError, Refused):
            return {}
        try:
            with os.scandir(fd) as entries:
                some = islice(entries, MAX_LISTED + 1)
                return {entry.name: entry.is_dir(follow_symlinks=False) for entry in some}
        except NotADirectoryError:
            return {}
        finally:
            os.close(fd)

    def problem(self, path: Parts) -> str | None:
        """Why what lies there can't be read at all, if that can be seen without reading it."""
        try:
            os.close(self._open(path))
        except Refused as error:
            return str(error)
        except OSError as error:
            return f"{shown('/'.join(path))} can't be read ({error.strerror})"
        return None

    def read(self, path: Parts, limit: int) -> bytes:
        """A regular file's bytes, at most `limit`. Raises Refused."""
        try:
            fd = self._open(path)
        except OSError as error:
            raise Refused(f"{shown('/'.join(path))} can't be read ({error.strerror})") from None
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise Refused(f"{shown('/'.join(path))} is a folder; wanted a file")
            if found.st_nlink > 1:
                raise Refused(f"{shown('/'.join(path))} is a hard link; hand in the file itself")
            try:
                return bounded(file, limit, path)
            except OSError as error:
                raise Refused(f"{shown('/'.join(path))} can't be read ({error})") from None

    def _open(self, path: Parts) -> int:
        """A descriptor of a file or folder, each step taken from the last, links not followed."""
        with ExitStack() as stack:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
            for i, name in enumerate(path):
                stack.callback(os.close, fd)
                mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                regular(mode, path[: i + 1])
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                fd = os.open(name, flags, dir_fd=fd)
            try:
                regular(os.fstat(fd).st_mode, path)  # it may have been exchanged since
            except Refused:
                os.close(fd)
                raise
            return fd


def regular(mode: int, path: Parts) -> None:
    """Raise Refused unless a mode is a plain file's or folder's."""
    kind = KINDS.get(stat.S_IFMT(mode))
    if kind:
        raise Refused(f"{shown('/'.join(path))} is {kind}; wanted plain files and folders")


def bounded(file: BinaryIO, limit: int, path: Parts) -> bytes:
    """What a file holds, counted while it is read. Raises Refused over `limit` bytes."""
    data = bytearray()
    while chunk := file.read(_CHUNK):
        data += chunk
        if len(data) > limit:
            raise Refused(
                f"{shown('/'.join(path))} is too long: at most {limit:,} bytes are left for it"
            )
    return bytes(data)
