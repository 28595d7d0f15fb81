"""A folder of files as an answer: how it is read beside the student, into plain values.

The bytes cross as they are. Nothing here parses them, and what reads them on the other side trusts
neither their names nor their number: this side can be changed by the student's code.

Chapter: appendix/for-instructors.
"""

import os
import stat
from pathlib import Path
from typing import Any

from course_pkg.files import readable_size

from .calling import WrongUse

MAX_FILES = 16


def read_folder(path: Any, most: int) -> dict[str, bytes]:
    """The files of a folder by name. Names that start with a dot are left out.

    most: bytes that all files together may have. Raises WrongUse for anything but a folder of
    plain files: links are not followed, and folders inside are not read.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "report.json").write_text("{}")
    ...     read_folder(folder, most=1000)
    {'report.json': b'{}'}
    """
    if not isinstance(path, str | os.PathLike):
        raise WrongUse(f"expected the path of a folder, but {type(path).__name__} was given")
    folder = Path(path)
    if folder.is_symlink():
        raise WrongUse(f"{folder} is a link; expected the folder itself")
    if not folder.is_dir():
        raise WrongUse(f"there is no folder {folder}: has your program written it?")
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    if len(names) > MAX_FILES:
        raise WrongUse(f"{folder} holds {len(names)} files; at most {MAX_FILES} can be submitted")
    files: dict[str, bytes] = {}
    left = most
    for name in names:
        files[name] = _content(folder / name, left, most)
        left -= len(files[name])
    return files


def _content(path: Path, left: int, most: int) -> bytes:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        kind = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder"}.get(stat.S_IFMT(found.st_mode))
        raise WrongUse(f"{path} is {kind or 'not a file'}; expected plain files only")
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        content = file.read(left + 1)
    if len(content) > left:
        raise WrongUse(
            f"{path} has {readable_size(found.st_size)}; the files of the folder may have "
            f"{readable_size(most)} in all"
        )
    return content
