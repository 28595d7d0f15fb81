"""A zip of hand-ins, read as hostile and never unpacked: `Zip` looks like `trees.Folder`.

Only names are believed, and those once they are plain; sizes are counted while reading. What is
wrong with one entry is told of that entry alone: a name that leads out of the zip, a link, a
password, an entry that lies over another one, a bomb.

Chapter: appendix/for-instructors.
"""

import io
import os
import stat
import struct
import zipfile
from collections import Counter
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from .folders import KINDS, Parts, Refused, bounded, regular
from .names import shown

MIB = 1024 * 1024
MAX_ENTRIES = 50_000
MAX_NODES = 500_000  # files and folders, those between included
MAX_TABLE = 16 * MIB  # bytes of the table of contents
MAX_PARTS = 24  # names in a path
MAX_RATIO = 200  # of what an entry unpacks to, once that is more than RATIO_FROM
RATIO_FROM = MIB
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(slots=True)
class _Node:
    """What a zip holds at one path: a file's entry, or names below it; and what is wrong."""

    entry: zipfile.ZipInfo | None = None
    below: "dict[str, _Node] | None" = None
    wrong: str | None = None


class Zip:
    """Hand-ins in a zip. Raises BadZipFile or OSError."""

    def __init__(self, root: Path) -> None:
        self._file = _Guarded(open(root, "rb"))  # noqa: SIM115 (open as long as the zip is read)
        self._top, self._nodes = _Node(below={}), 0
        try:
            regular(os.fstat(self._file.fileno()).st_mode, (root.name,))
            self._zip = zipfile.ZipFile(self._file, metadata_encoding="latin-1")
            entries = self._zip.infolist()
            if len(entries) > MAX_ENTRIES:
                raise zipfile.BadZipFile(f"{len(entries):,} entries; at most {MAX_ENTRIES:,}")
            overlapping = _overlapping(entries, self._zip.start_dir)
            times = Counter(entry.orig_filename for entry in entries)
            for entry in entries:
                again = times[entry.orig_filename] > 1
                self._add(entry, _wrong(entry, id(entry) in overlapping, again))
        except (NotImplementedError, ValueError, struct.error, EOFError) as error:
            self._file.close()
            raise zipfile.BadZipFile(str(error)) from None
        except zipfile.BadZipFile:
            self._file.close()
            raise
        self._file.opened = True

    def _add(self, entry: zipfile.ZipInfo, wrong: str | None) -> None:
        name = entry.orig_filename.encode("latin-1").decode("utf-8", "backslashreplace")
        node = self._top
        for depth, part in enumerate(name.removesuffix("/").split("/")):
            if node.below is None:
                node.below = {}
            if part not in node.below:
                self._nodes += 1
                node.below[part] = _Node()
            node = node.below[part]
            if self._nodes > MAX_NODES:
                raise zipfile.BadZipFile(f"more than {MAX_NODES:,} files and folders")
            if part in ("", ".", "..") or "\\" in part or "\0" in part or depth > MAX_PARTS:
                node.wrong = f"in the zip is no plain path ({shown(name)})"
                return
        node.wrong = node.wrong or wrong
        if not name.endswith("/"):
            node.entry = entry
        elif node.below is None:
            node.below = {}

    def children(self, folder: Parts) -> dict[str, bool]:
        """The names in a folder, and whether each is a folder itself; {} where there is none."""
        node = self._node(folder)
        below = node.below if node else None
        return {name: inner.below is not None for name, inner in (below or {}).items()}

    def problem(self, path: Parts) -> str | None:
        """Why what lies there can't be read at all, if that can be seen without reading it."""
        for i in range(1, len(path) + 1):
            node = self._node(path[:i])
            if node is None:
                return f"{shown('/'.join(path))} is not there"
            if node.wrong:
                return f"{shown('/'.join(path[:i]))} {node.wrong}"
            if node.entry and node.below is not None:
                return f"{shown('/'.join(path[:i]))} is both a file and a folder in the zip"
        return None

    def read(self, path: Parts, limit: int) -> bytes:
        """A file's bytes, at most `limit`. Raises Refused."""
        name, node = shown("/".join(path)), self._node(path)
        if (wrong := self.problem(path)) or node is None or node.entry is None:
            raise Refused(wrong or f"{name} is a folder; wanted a file")
        most = min(limit, max(RATIO_FROM, MAX_RATIO * node.entry.compress_size))
        try:
            with self._open(node.entry) as file:
                return bounded(file, most, path)
        except Refused as error:
            bomb = most < limit
            raise Refused(f"{name} unpacks to far more than it holds" if bomb else error) from None
        except Exception as error:  # a broken entry raises many types
            raise Refused(f"{name} can't be unpacked ({type(error).__name__})") from None

    def _open(self, entry: zipfile.ZipInfo) -> zipfile.ZipExtFile:
        try:
            return self._zip.open(entry)
        except zipfile.BadZipFile:  # so too where its own header says that its name is UTF-8
            again = copy(entry)
            again.orig_filename = entry.orig_filename.encode("latin-1").decode("utf-8")
            return self._zip.open(again)

    def _node(self, path: Parts) -> _Node | None:
        node: _Node | None = self._top
        for part in path:
            node = (node.below or {}).get(part) if node else None
        return node


class _Guarded(io.BufferedReader):
    """A zip's file that reads no table of contents beyond its limit, and takes names as bytes.

    Python decodes a name by a flag in its entry and gives up on the whole zip at one that is no
    UTF-8; without the flag it keeps them all.
    """

    opened = False

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(file.detach())

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.opened and (size or 0) > MAX_TABLE:
            raise zipfile.BadZipFile(f"a table of contents of {size:,} bytes")
        data = super().read(size)
        return data if self.opened or data[:4] != b"PK\1\2" else _without_flags(data)


def _without_flags(table: bytes) -> bytes:
    """A table of contents in which no entry says that its name is UTF-8."""
    out, at = bytearray(table), 0
    while at + 46 <= len(out) and out[at : at + 4] == b"PK\1\2":
        out[at + 9] &= ~0x08
        at += 46 + sum(struct.unpack_from("<3H", out, at + 28))
    return bytes(out)


def _wrong(entry: zipfile.ZipInfo, overlaps: bool, again: bool) -> str | None:
    """What speaks against an entry, from the table of contents alone."""
    kind = KINDS.get(stat.S_IFMT(entry.external_attr >> 16))
    if kind:
        return f"is {kind}; wanted plain files and folders"
    if entry.flag_bits & 1:
        return "is encrypted; make the zip without a password"
    if entry.compress_type not in _PACKED:
        return "is packed in an unusual way; make the zip anew, with deflate"
    if overlaps:
        return "lies over another entry of the zip; make the zip anew"
    return "is in the zip more than once; make the zip anew" if again else None


def _overlapping(entries: list[zipfile.ZipInfo], end: int) -> set[int]:
    """The `id` of every entry whose bytes are another's too, or the table of contents'."""
    rows = sorted(entries, key=lambda e: e.header_offset)
    found, reach, holder = set(), 0, None
    for entry in rows:
        if entry.header_offset < reach and holder is not None:
            found |= {id(entry), id(holder)}
        until = entry.header_offset + 30 + len(entry.orig_filename) + entry.compress_size
        if until > end:
            found.add(id(entry))
        if until > reach:
            reach, holder = until, entry
    return found
