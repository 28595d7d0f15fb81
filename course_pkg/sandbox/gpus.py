"""The NVIDIA GPUs that a sandbox can be given: device files, what the driver reads, memory in use.

`find_gpus` asks `nvidia-smi`, and never CUDA: a CUDA context in a process that forks later would
break all its children. CUDA has no limit on memory that a process could not lift, so `GpuMemory`
asks again and again, about the whole GPU, since the driver's tools don't know the process ids of a
sandbox; nothing else should run on that GPU.
"""

import os
import re
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

MIB = 1024 * 1024
TIMEOUT_S = 60.0  # without the persistence daemon, the first call loads the driver's state
PROGRAMS = ("/usr/local/nvidia/bin", "/usr/bin")
LIBRARIES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/run/opengl-driver/lib")
# libcuda looks at the processors, the memory nodes and the module's state: without /sys it fails.
SYSTEM = ("devices/system", "module/nvidia", "module/nvidia_uvm", "bus/pci/devices")
SHARED = ("nvidiactl", "nvidia-uvm")  # device files that every GPU needs
OPTIONAL = ("nvidia-uvm-tools",)  # drivers from 570 on open it
EVERYBODY = stat.S_IROTH | stat.S_IWOTH
PAUSE_S = 0.5  # between two looks
SLACK_BYTES = 64 * MIB  # what the driver itself may keep for later
RELEASE_WITHIN_S = 10.0  # the driver frees memory a moment after a process has ended


@dataclass(frozen=True)
class Gpu:
    """One GPU, and what a sandbox needs to use it.

    Attributes:
        index: `nvidia-smi`'s number.
        total_bytes: None if unknown.
        devices: pairs of a path inside the sandbox and the device file outside.
        readable: folders that the driver reads.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int | None
    devices: tuple[tuple[str, Path], ...]
    readable: tuple[Path, ...] = ()

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


def find_gpus(
    dev: Path = Path("/dev"), sys: Path = Path("/sys")
) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The GPUs that sandboxes can use here, and why others can't be used, each in one line.

    Never raises. `dev` and `sys` are the folders of device files and of the kernel's objects.
    """
    try:
        tree = ElementTree.fromstring(_nvidia_smi("-q", "-x"))
    except OSError as error:
        return (), (str(error),)
    except ElementTree.ParseError as error:
        return (), (f"nvidia-smi wrote no XML that can be read ({error})",)
    gpus = []
    reasons = []
    for index, entry in enumerate(tree.findall("gpu")):
        name = entry.findtext("product_name") or "unknown"
        if reason := _unusable(entry, dev):
            reasons.append(f"GPU {index} ({name}): {reason}")
            continue
        total = entry.findtext("fb_memory_usage/total") or ""
        gpu = Gpu(
            index,
            entry.findtext("uuid") or "",
            name,
            _mebibytes(total.removesuffix("MiB")),
            tuple((f"/dev/{file}", dev / file) for file in _files(entry, dev)),
            _readable(entry.get("id", ""), sys),
        )
        gpus.append(gpu)
    if not gpus and not reasons:
        reasons.append("nvidia-smi lists no GPU")
    return tuple(gpus), tuple(reasons)


def used_bytes(gpu: Gpu) -> int | None:
    """The memory in use on a GPU, by all programs together; None if that can't be measured."""
    line = ("--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={gpu.uuid}")
    try:
        return _mebibytes(_nvidia_smi(*line))
    except OSError:
        return None


def library_path() -> str:
    """LD_LIBRARY_PATH for a process that uses a GPU: folders with the driver's libcuda, if any.

    The usual place is one of the system's own folders, and then this is "".
    """
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    holding = [folder for folder in (*folders, *LIBRARIES) if Path(folder, "libcuda.so.1").exists()]
    return ":".join(dict.fromkeys(holding))


def _nvidia_smi(*arguments: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *PROGRAMS))
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        raise OSError("this machine has no NVIDIA driver (there is no nvidia-smi)")
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"nvidia-smi did not answer within {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(f"nvidia-smi failed: {said[-1][:200]}")
    return done.stdout


def _unusable(entry: ElementTree.Element, dev: Path) -> str:
    """Why a GPU of nvidia-smi's list can't be given to a sandbox; "" if it can."""
    if not (entry.findtext("uuid") or "").startswith("GPU-"):
        return "nvidia-smi gives no UUID for it"
    if not (entry.findtext("minor_number") or "").isdecimal():
        return "it has no device file of its own (as under WSL, which is not supported)"
    if entry.findtext("mig_mode/current_mig") == "Enabled":
        return "it is split by MIG, and the grader uses whole GPUs: `nvidia-smi -mig 0`"
    if entry.findtext("compute_mode") == "Prohibited":
        return "its compute mode forbids programs: `nvidia-smi -c DEFAULT`"
    for name in _files(entry, dev):
        path = dev / name
        if not path.exists():
            return f"{path} is missing: run `nvidia-modprobe -u -c {name[6:]}`, or any CUDA program"
        mode = path.stat().st_mode
        if mode & EVERYBODY != EVERYBODY:
            return f"{path} is closed to other users (mode {stat.S_IMODE(mode):04o}): expected 0666"
    return ""


def _files(entry: ElementTree.Element, dev: Path) -> tuple[str, ...]:
    own = f"nvidia{entry.findtext('minor_number')}"
    return (own, *SHARED, *(name for name in OPTIONAL if (dev / name).exists()))


def _readable(bus_id: str, sys: Path) -> tuple[Path, ...]:
    """The folders that libcuda reads: of the kernel's objects, and of the driver's libraries."""
    paths = [sys / name for name in SYSTEM]
    if match := re.fullmatch(r"[0-9A-Fa-f]{4}([0-9A-Fa-f]{4}:[0-9A-Fa-f:.]+)", bus_id):
        paths.append((sys / "bus/pci/devices" / match[1].lower()).resolve())
    paths += map(Path, filter(None, library_path().split(":")))
    return tuple(path for path in paths if path.exists())


def _mebibytes(text: str) -> int | None:
    text = text.strip()
    return int(text) * MIB if text.isdecimal() else None


class GpuMemory:
    """Watches one GPU while one program uses it. A context manager, which stops the watching.

    peak_bytes: the most in use beyond what was in use before; None if never measured. too_much:
    whether the limit was exceeded.

    Args:
        limit_bytes: None for no limit.
        exceeded: called once, in another thread, above the limit.
        used: gives the memory in use, None if unknown.
    """

    def __init__(
        self,
        gpu: Gpu,
        limit_bytes: int | None,
        exceeded: Callable[[], None],
        used: Callable[[Gpu], int | None] = used_bytes,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.gpu = gpu
        self._limit = limit_bytes
        self._exceeded = exceeded
        self._used = used
        self._pause_s = pause_s
        self._before = used(gpu)
        self._unknown = False
        self.peak_bytes: int | None = None
        self.too_much = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def measured(self) -> bool:
        """Whether the memory in use was known before, and every time since."""
        return self._before is not None and not self._unknown

    def __enter__(self) -> "GpuMemory":
        if self._before is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def kept_bytes(self, within_s: float = RELEASE_WITHIN_S) -> int:
        """What is still in use, after the program was killed, beyond what was in use before.

        0 as soon as it is released, or if it can't be measured. Waits at most `within_s` seconds.
        """
        until = time.monotonic() + within_s
        while (more := self._more()) is not None and more > SLACK_BYTES:
            if time.monotonic() >= until:
                return more
            time.sleep(self._pause_s)
        return 0

    def _watch(self) -> None:
        while not self._stopped.wait(self._pause_s):
            more = self._more()
            if more is None:
                continue
            self.peak_bytes = max(more, self.peak_bytes or 0)
            if self._limit is not None and more > self._limit and not self.too_much:
                self.too_much = True
                self._exceeded()

    def _more(self) -> int | None:
        if self._before is None:
            return None
        now = self._used(self.gpu)
        self._unknown |= now is None
        return None if now is None else max(0, now - self._before)
