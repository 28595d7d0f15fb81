"""A folder that is built once, checked at every use, and shared by everyone on the machine.

What it promises: a folder is either whole or not there (it is built beside its place and
renamed into it); a file that was cut short or had a bit flipped is noticed and the folder
is built again; processes that ask at the same time build it once; other users can read it.

What it does not do: it knows nothing about models, and never deletes a folder that it did
not build. A lock lives as long as its process (`flock`), so a dead one blocks nobody.

Chapter: setup.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from course_pkg.lm.errors import CacheAccessError, ModelError, NoSpaceError

MANIFEST = "manifest.json"
FORMAT = 2  # raise it when folders built by older code must be built again
PIECE = 16 * 2**20  # bytes hashed at a time, so that threads can share one big file
NO_SPACE = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOLCK}


@dataclass(frozen=True)
class CacheState:
    """What stands at a cache folder's place, and why it is or is not believed."""

    folder: Path
    state: Literal["valid", "absent", "damaged"]
    detail: str


def cache_root() -> Path:
    """The folder that holds every cached model: $COURSE_CACHE, or one in the user's cache.

    The default is `llm-course` under $XDG_CACHE_HOME, else under ~/Library/Caches on macOS
    and ~/.cache elsewhere. It need not exist.

    >>> cache_root().is_absolute()
    True
    """
    if named := os.environ.get("COURSE_CACHE"):
        return Path(named).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "llm-course"
    user_cache = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / user_cache / "llm-course"


def digest(path: Path) -> str:
    """SHA-256 of the SHA-256s of a file's 16 MiB pieces, in hexadecimal.

    A tree of hashes catches what a plain hash catches, and threads share the work: half a
    gigabyte takes a few tenths of a second on two cores. Raises OSError if unreadable.
    """

    def piece(start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(PIECE)).digest()

    starts = range(0, path.stat().st_size, PIECE)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return hashlib.sha256(b"".join(pool.map(piece, starts))).hexdigest()


def inspect(folder: Path, key: str, *, deep: bool = True) -> CacheState:
    """Say whether the cached folder is whole: every file there, of its size, with its hash.

    key: the hash of what it was built from; another key means it must be built again.
    deep: also read every byte; without it only names and sizes are compared.
    """
    if not folder.exists():
        return CacheState(folder, "absent", "nothing there yet")
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT or manifest["key"] != key:
            return CacheState(folder, "damaged", "built from another source or by older code")
        present = {path.name for path in folder.iterdir()} - {MANIFEST}
        if odd := present.symmetric_difference(manifest["files"]):
            return CacheState(folder, "damaged", f"files missing or extra: {sorted(odd)}")
        for name, entry in manifest["files"].items():
            size = (folder / name).stat().st_size
            if size != entry["bytes"]:
                detail = f"{name} has {size} bytes, {entry['bytes']} expected"
                return CacheState(folder, "damaged", detail)
            if deep and digest(folder / name) != entry["digest"]:
                return CacheState(folder, "damaged", f"{name} does not match its checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        detail = f"its manifest or a file cannot be read ({type(error).__name__})"
        return CacheState(folder, "damaged", detail)
    return CacheState(folder, "valid", "every file matches its checksum" if deep else "sizes match")


def ensure(folder: Path, key: str, build: Callable[[Path], None], needed_bytes: int) -> Path:
    """Return the folder, building it first if it is absent or damaged.

    build: writes the files into the empty folder that it is given, and nothing else.
    needed_bytes: room that the result takes; checked before any work is done.
    Raises NoSpaceError, CacheAccessError, or whatever ModelError `build` raises.
    """
    if inspect(folder, key).state == "valid":
        return folder
    try:
        if not folder.parent.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.parent.chmod(0o755)
        with _lock(folder.parent / f".{folder.name}.lock"):
            if inspect(folder, key).state == "valid":  # another process built it meanwhile
                return folder
            _sweep(folder)
            _check_space(folder.parent, needed_bytes)
            partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
            try:
                build(partial)
                _seal(partial, key)
                _swap(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except ModelError:
        raise
    except Exception as error:  # safetensors reports a full disk as an error of its own
        raise _explained(error, folder, needed_bytes) or error from error
    return folder


def _seal(folder: Path, key: str) -> None:
    """Write the manifest, and make everything readable by other users."""
    files = {
        path.name: {"bytes": path.stat().st_size, "digest": digest(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = {"format": FORMAT, "key": key, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o755)


def _swap(partial: Path, folder: Path) -> None:
    """Put the new folder in its place; a damaged one is moved aside first, then deleted."""
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=folder.parent))
        folder.rename(old / folder.name)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(folder)


def _sweep(folder: Path) -> None:
    """Delete what interrupted builds left behind; only the lock's holder may."""
    for kind in ("partial", "old"):
        for left in folder.parent.glob(f".{folder.name}.{kind}-*"):
            shutil.rmtree(left, ignore_errors=True)


def _check_space(root: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(root).free
    if free < needed_bytes:
        raise NoSpaceError(
            f"{root} has {free / 1e6:.0f} MB free and the model needs {needed_bytes / 1e6:.0f} MB: "
            "free some space, or set COURSE_CACHE to a folder on a larger disk"
        )


def _explained(error: Exception, folder: Path, needed_bytes: int) -> ModelError | None:
    """The ModelError that says in one line what a system's error means, if one does."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None and (told := re.search(r"os error (\d+)", str(error))):
        code = int(told.group(1))
    if code in NO_SPACE:
        return NoSpaceError(
            f"the disk filled up while {folder} was being written ({os.strerror(code)}; "
            f"{needed_bytes / 1e6:.0f} MB are needed): free some space, or set COURSE_CACHE "
            "to a folder on a larger disk"
        )
    if code in NO_ACCESS:
        return CacheAccessError(
            f"{folder} cannot be written ({os.strerror(code)}): "
            "set COURSE_CACHE to a folder of your own"
        )
    return None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file until the block ends or the process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with suppress(PermissionError):  # its owner lets every user take the lock
            os.fchmod(descriptor, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that prepares {path.parent}", file=sys.stderr)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
