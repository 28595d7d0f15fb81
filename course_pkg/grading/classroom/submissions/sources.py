"""The sources of submissions: a folder, or a zip, which is read without unpacking it.

In a folder, links are not followed, and pipes and devices are not opened: each name of a path is
opened relative to the descriptor of the folder before it, so a file that is replaced between
looking and reading can't lead elsewhere. Of a zip, names are checked, bytes counted while they are
read, and the compression ratio is limited. A bad entry is reported for that entry alone.
"""

import os
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
MAX_ENTRIES = 500_000  # of the whole class; each submission has a limit of its own
MAX_DEPTH = 24  # names in a path
MAX_RATIO = 200  # unpacked size by packed size, of entries larger than RATIO_FROM
RATIO_FROM = 1_000_000  # bytes
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_UTF8_FLAG = 0x800
# What systems write without that flag: Windows in Europe, and in China, Japan and Korea.
CODECS = ("cp437", "cp850", "cp852", "cp866", "cp1252", "gb18030", "shift_jis", "euc_kr", "big5")
UNKNOWN_LETTERS = (
    "has a name that is not in UTF-8, as some programs of Windows write it: give the class with "
    "--roster, which tells how it is spelled, or unpack the zip there and give the folder"
)


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
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode):
                    raise Refused(f"{shown('/'.join(path))} is a folder; expected a file")
                if info.st_nlink > 1:
                    raise Refused(f"{shown('/'.join(path))} is a hard link; submit the file itself")
                with open(fd, "rb", closefd=False) as file:
                    return read_bounded(file, limit, path)
        except OSError as error:
            raise Refused(f"{shown('/'.join(path))} can't be read ({error.strerror})") from None

    def modified(self, path: Parts) -> datetime | None:
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


@dataclass(slots=True)
class _Node:
    """One path in a zip: the entry of a file, or the names below a folder; and what is wrong."""

    entry: zipfile.ZipInfo | None = None
    below: "dict[str, _Node] | None" = None
    wrong: str | None = None


class Zip:
    """The submissions in a zip. Raises BadZipFile or OSError.

    Args:
        known: whether a name at the top is somebody's. It decides in which code page the names are
            that are not in UTF-8.
    """

    def __init__(self, path: Path, known: Callable[[str], bool] = lambda _: False) -> None:
        if not path.is_file():
            raise zipfile.BadZipFile("it is not a file")
        try:  # latin-1 keeps every byte of a name without the UTF-8 flag
            self._zip = zipfile.ZipFile(path, metadata_encoding="latin-1")
        except (NotImplementedError, ValueError, EOFError) as error:
            raise zipfile.BadZipFile(str(error)) from None
        entries = self._zip.infolist()
        if len(entries) > MAX_ENTRIES:
            raise zipfile.BadZipFile(f"{len(entries):,} entries; at most {MAX_ENTRIES:,}")
        self._root = _Node(below={})
        self._codec = _codec(entries, known)
        times = Counter(entry.orig_filename for entry in entries)
        for entry in entries:
            self._add(entry, _problem(entry, times[entry.orig_filename] > 1))

    def _add(self, entry: zipfile.ZipInfo, wrong: str | None) -> None:
        name = _name(entry, self._codec)
        known = self._codec or _utf8(entry) is not None
        node = self._root
        for depth, part in enumerate(name.removesuffix("/").split("/"), 1):
            if node.below is None:
                node.below = {}
            node = node.below.setdefault(part, _Node())
            if part in ("", ".", "..") or "\\" in part or "\0" in part or depth > MAX_DEPTH:
                plain = f"is not a plain path in the zip ({shown(name)})"
                node.wrong = plain if known else UNKNOWN_LETTERS
                return
        node.wrong = node.wrong or wrong
        if not name.endswith("/"):
            node.entry = entry
        elif node.below is None:
            node.below = {}

    def children(self, folder: Parts) -> dict[str, bool]:
        node = self._node(folder)
        below = node.below if node else None
        return {name: inner.below is not None for name, inner in (below or {}).items()}

    def problem(self, path: Parts) -> str | None:
        for i in range(1, len(path) + 1):
            node = self._node(path[:i])
            if node is None:
                return f"{shown('/'.join(path))} does not exist"
            if node.wrong:
                return f"{shown('/'.join(path[:i]))} {node.wrong}"
            if node.entry and node.below is not None:
                return f"{shown('/'.join(path[:i]))} is both a file and a folder in the zip"
        return None

    def modified(self, path: Parts) -> datetime | None:
        """The time of the entry, which has no zone and is taken as this machine's; in UTC."""
        node = self._node(path)
        if node is None or node.entry is None:
            return None
        with suppress(ValueError, OverflowError, OSError):
            return datetime(*node.entry.date_time).astimezone(UTC)
        return None

    def read(self, path: Parts, limit: int) -> bytes:
        name = shown("/".join(path))
        node = self._node(path)
        if (wrong := self.problem(path)) or node is None or node.entry is None:
            raise Refused(wrong or f"{name} is a folder; expected a file")
        most = min(limit, max(RATIO_FROM, MAX_RATIO * node.entry.compress_size))
        try:
            with self._zip.open(node.entry) as file:
                return read_bounded(file, most, path)
        except Refused as error:
            raise Refused(
                f"{name} unpacks to far more than its size" if most < limit else error
            ) from None
        except Exception as error:  # zipfile raises many types for a damaged entry
            raise Refused(f"{name} can't be unpacked ({type(error).__name__})") from None

    def _node(self, path: Parts) -> _Node | None:
        node: _Node | None = self._root
        for part in path:
            node = (node.below or {}).get(part) if node else None
        return node


def _utf8(entry: zipfile.ZipInfo) -> str | None:
    """An entry's name, if it is in UTF-8: most systems write that, even without the flag."""
    name = entry.orig_filename
    return name if entry.flag_bits & _UTF8_FLAG else _decoded(name)


def _decoded(name: str) -> str | None:
    try:
        return name.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        return None


def _name(entry: zipfile.ZipInfo, codec: str) -> str:
    """An entry's name; `codec` is for one that is not in UTF-8, "" escapes its bytes."""
    name = _utf8(entry)
    if name is None:
        name = entry.orig_filename.encode("latin-1").decode(codec or "utf-8", "backslashreplace")
    return name


def _codec(entries: list[zipfile.ZipInfo], known: Callable[[str], bool]) -> str:
    tops = {e.orig_filename.partition("/")[0] for e in entries if not e.flag_bits & _UTF8_FLAG}
    names = [name for name in tops if _decoded(name) is None]
    best = ""
    most = 0
    for codec in CODECS if names else ():
        texts = (name.encode("latin-1").decode(codec, "replace") for name in names)
        count = sum(map(known, texts))
        if count > most:
            best = codec
            most = count
    return best


def _problem(entry: zipfile.ZipInfo, again: bool) -> str | None:
    kind = KINDS.get(stat.S_IFMT(entry.external_attr >> 16))
    if kind:
        return f"is {kind}; expected plain files and folders"
    if entry.flag_bits & 1:
        return "is encrypted; make the zip without a password"
    if entry.compress_type not in _METHODS:
        return "is packed in an unusual way; make the zip again, with deflate"
    return "is in the zip more than once; make the zip again" if again else None
