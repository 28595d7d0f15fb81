"""A folder that is built once, checked at every use, and shared by everyone on the machine.

The folder is complete or absent, because it is built under a temporary name, then renamed. If a
file was truncated or one of its bits changed, it is built again. Processes that need it at the
same time build it once.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from course_pkg.common.files import lock, readable_size, system_error_number
from course_pkg.lm.model_errors import CacheAccessError, ModelError, NoSpaceError

MANIFEST = "manifest.json"
FORMAT = 2  # increase it when folders built by older code must be built again
CHUNK = 16 * 2**20  # bytes that one thread hashes at a time
NO_SPACE = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOLCK}


@dataclass(frozen=True)
class CacheState:
    """Whether a cache folder is valid, and the reason."""

    folder: Path
    state: Literal["valid", "absent", "damaged"]
    detail: str


def cache_root() -> Path:
    """The folder of all cached models: $COURSE_CACHE, or `llm-course` in the user's cache."""
    if named := os.environ.get("COURSE_CACHE"):
        return Path(named).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "llm-course"
    user_cache = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / user_cache / "llm-course"


def digest(path: Path) -> str:
    """SHA-256 of the SHA-256s of a file's 16 MiB chunks, in hexadecimal; threads share the work."""

    def chunk_digest(start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(CHUNK)).digest()

    starts = range(0, path.stat().st_size, CHUNK)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return hashlib.sha256(b"".join(pool.map(chunk_digest, starts))).hexdigest()


def inspect(folder: Path, key: str, *, deep: bool = True) -> CacheState:
    """Check a cached folder: every file is present and has the expected size and hash.

    Args:
        key: the hash of the source that it is built from; a different key means "build again".
        deep: read every byte; if False, compare only names and sizes.
    """
    if not folder.exists():
        return CacheState(folder, "absent", "not built yet")
    try:
        damage = _damage(folder, key, deep)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        damage = f"its manifest or a file cannot be read ({type(error).__name__})"
    if damage:
        return CacheState(folder, "damaged", damage)
    return CacheState(folder, "valid", "every file matches its checksum" if deep else "sizes match")


def _damage(folder: Path, key: str, deep: bool) -> str:
    """The first thing that is wrong with a folder; empty if nothing is."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if manifest["format"] != FORMAT or manifest["key"] != key:
        return "built from a different source or by older code"
    present = {path.name for path in folder.iterdir()} - {MANIFEST}
    if unexpected := present.symmetric_difference(manifest["files"]):
        return f"files missing or extra: {sorted(unexpected)}"
    for name, entry in manifest["files"].items():
        size = (folder / name).stat().st_size
        if size != entry["bytes"]:
            return f"{name} has {size} bytes, expected {entry['bytes']}"
        if deep and digest(folder / name) != entry["digest"]:
            return f"{name} does not match its checksum"
    return ""


def ensure(folder: Path, key: str, build: Callable[[Path], None], needed_bytes: int) -> Path:
    """Return the folder, after building it if it is absent or damaged.

    Args:
        build: writes the files into the empty folder that it is given, and nothing else.
        needed_bytes: disk space for the result; it is checked first.
    """
    if inspect(folder, key).state == "valid":
        return folder
    try:
        if not folder.parent.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.parent.chmod(0o755)
        with _build_lock(folder.parent / f".{folder.name}.lock"):
            if inspect(folder, key).state == "valid":  # another process has built it
                return folder
            for kind in ("partial", "old"):  # what interrupted builds left behind
                for leftover in folder.parent.glob(f".{folder.name}.{kind}-*"):
                    shutil.rmtree(leftover, ignore_errors=True)
            _check_space(folder.parent, needed_bytes)
            partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
            try:
                build(partial)
                _write_manifest(partial, key)
                _replace(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except ModelError:
        raise
    except Exception as error:  # safetensors has its own error for a full disk
        raise _explain(error, folder, needed_bytes) or error from error
    return folder


def _write_manifest(folder: Path, key: str) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "digest": digest(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = {"format": FORMAT, "key": key, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o755)


def _replace(partial: Path, folder: Path) -> None:
    """Rename the new folder to its final name; move a damaged one aside first, then delete it."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=folder.parent))
    if folder.exists():
        folder.rename(old / folder.name)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _check_space(root: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(root).free
    if free < needed_bytes:
        raise NoSpaceError(
            f"{root} has {readable_size(free)} free and the model needs "
            f"{readable_size(needed_bytes)}: free some space, or set COURSE_CACHE to a folder on a "
            "larger disk"
        )


def _explain(error: Exception, folder: Path, needed_bytes: int) -> ModelError | None:
    """A ModelError that explains a system error in one line; None if no explanation fits."""
    code = system_error_number(error)
    if code in NO_SPACE:
        return NoSpaceError(
            f"the disk filled up while {folder} was being written ({os.strerror(code)}; "
            f"{readable_size(needed_bytes)} are needed): free some space, or set COURSE_CACHE "
            "to a folder on a larger disk"
        )
    if code in NO_ACCESS:
        return CacheAccessError(
            f"{folder} cannot be written ({os.strerror(code)}): "
            "set COURSE_CACHE to a folder that you own"
        )
    return None


@contextmanager
def _build_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a folder that is being built; print a line before waiting."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(path, wait=False, mode=0o666))
        except BlockingIOError:
            print(f"waiting for another process that is preparing {path.parent}", file=sys.stderr)
            stack.enter_context(lock(path, mode=0o666))
        yield
