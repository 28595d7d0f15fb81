"""Check whether this machine has what the course needs, with a fix for each problem.

Only the essentials (Python, torch, the model, disk space for it) decide whether the machine is fit:
without a GPU, a sandbox or a browser you can still read the course.
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from course_pkg.common.pins import mismatches, read_pins
from course_pkg.sandbox import probe as sandbox

State = Literal["ok", "warning", "missing"]
PYTHON_MIN = (3, 11)
PYTHON_BELOW = (3, 14)
MEMORY_BYTES = 6e9  # for a LoRA step of SmolLM2 in fp32, and a notebook
CACHE_BYTES = 1e9
REPO_BYTES = 1e9
INSTALL = "python -m pip install --no-deps -r requirements.txt"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: what was found, and how to fix it if it is not ok."""

    name: str
    state: State
    found: str
    fix: str = ""
    essential: bool = False


def check_python(version: tuple[int, int, int] = sys.version_info[:3]) -> CheckResult:
    """Whether the course runs on this version of Python: 3.11 to 3.13."""
    found = ".".join(map(str, version))
    if PYTHON_MIN <= version[:2] < PYTHON_BELOW:
        return CheckResult("Python", "ok", found, essential=True)
    fix = "create a virtual environment with Python 3.11, 3.12 or 3.13"
    return CheckResult("Python", "missing", found, fix, essential=True)


def check_torch() -> CheckResult:
    """Whether torch can be imported; its version, build and number of threads."""
    try:
        import torch
    except Exception as error:
        found = f"cannot be imported ({type(error).__name__}: {error})"
        return CheckResult("torch", "missing", found, INSTALL, essential=True)
    build = f"CUDA {torch.version.cuda} build" if torch.version.cuda else "CPU build"
    found = f"{torch.__version__}, {build}, {torch.get_num_threads()} threads"
    return CheckResult("torch", "ok", found, essential=True)


def check_gpu() -> CheckResult:
    """Which GPU torch can use, and its memory in GB; having none is fine."""
    try:
        import torch

        if torch.cuda.is_available():
            gpu = torch.cuda.get_device_properties(0)
            more = torch.cuda.device_count() - 1
            others = f", and {more} more" if more else ""
            return CheckResult("GPU", "ok", f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB{others}")
        built_for_cuda = torch.version.cuda is not None
    except Exception:
        return CheckResult("GPU", "warning", "unknown: torch does not work", "fix torch first")
    if shutil.which("nvidia-smi") and not built_for_cuda:
        fix = "install the CUDA build of torch to use the GPU"
        return CheckResult("GPU", "warning", "NVIDIA driver found, but torch is a CPU build", fix)
    found = "none: everything runs on the CPU, and the GPU-only cells and tests are skipped"
    return CheckResult("GPU", "ok", found)


def check_flash_attention(cuda: bool | None = None) -> CheckResult:
    """Whether the optional flash-attn package is installed; it needs CUDA, which torch knows."""
    try:
        return CheckResult("flash-attn", "ok", metadata.version("flash-attn"))
    except metadata.PackageNotFoundError:
        pass
    if cuda is None:
        import torch

        cuda = torch.cuda.is_available()
    if not cuda:
        return CheckResult("flash-attn", "ok", "not installed, and not useful without CUDA")
    fix = "python -m pip install --no-build-isolation --no-deps -r requirements-gpu.txt"
    return CheckResult("flash-attn", "warning", "not installed (optional)", fix)


def check_bubblewrap() -> CheckResult:
    """Whether submissions can run in a sandbox here; grading needs this, reading does not."""
    state = sandbox.probe()
    return CheckResult("bubblewrap", "ok" if state.ok else "missing", state.detail, state.fix)


def check_model() -> CheckResult:
    """Whether SmolLM2 is intact in the cache, or can be converted from its package."""
    from course_pkg.lm import smollm2
    from course_pkg.lm.model_errors import ModelError

    cache = smollm2.cache_state()
    if cache.state == "valid":
        return CheckResult("model", "ok", f"{cache.folder}: {cache.detail}", essential=True)
    found = f"{cache.folder}: {cache.state} ({cache.detail})"
    try:
        smollm2.find_gguf()
    except ModelError as error:
        return CheckResult("model", "missing", found, str(error), essential=True)
    fix = "run course model to convert it, in about 25 s; the first use does the same"
    return CheckResult("model", "warning", found, fix, essential=True)


def check_memory(total: int | None = None, available: int | None = None) -> CheckResult:
    """Whether enough memory is free for fine-tuning SmolLM2. total, available: in bytes."""
    if total is None or available is None:
        import psutil

        memory = psutil.virtual_memory()
        total = memory.total
        available = memory.available
    found = f"{available / 1e9:.1f} GB free of {total / 1e9:.1f} GB"
    if available >= MEMORY_BYTES:
        return CheckResult("memory", "ok", found)
    fix = f"close other programs: fine-tuning needs {MEMORY_BYTES / 1e9:.0f} GB"
    return CheckResult("memory", "warning", found, fix)


def check_disk(name: str, folder: Path, needed: float, *, essential: bool = False) -> CheckResult:
    """Whether the file system of a folder has `needed` bytes free; the folder need not exist."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / 1e9:.1f} GB free at {folder}"
    if free >= needed:
        return CheckResult(name, "ok", found, essential=essential)
    fix = f"free {(needed - free) / 1e9:.1f} GB there"
    return CheckResult(name, "missing", found, fix, essential=essential)


def check_cache_disk() -> CheckResult:
    """Whether the cache's disk has space for the converted model, unless it is there already."""
    from course_pkg.lm import smollm2

    there = smollm2.cache_state(deep=False).state == "valid"
    folder = smollm2.cached_folder().parent
    return check_disk("cache disk", folder, 0 if there else CACHE_BYTES, essential=True)


def check_browser() -> CheckResult:
    """Whether Chromium is installed; only the tests of the built pages need it."""
    for program in BROWSERS:
        if path := shutil.which(program):
            return CheckResult("Chromium", "ok", path)
    fix = "sudo apt install chromium (without it the page tests are skipped)"
    return CheckResult("Chromium", "warning", "not found", fix)


def check_lock(requirements: Path) -> CheckResult:
    """Whether the installed versions are those that requirements.txt pins."""
    if not requirements.is_file():
        found = f"no {requirements.name} in {requirements.parent}"
        return CheckResult("lock", "warning", found, "run course doctor in the course's folder")
    pins = read_pins(requirements.read_text())
    differences = mismatches(pins)
    if not differences:
        return CheckResult("lock", "ok", f"all {len(pins)} pins match {requirements.name}")
    more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
    shown = "; ".join(differences[:3]) + more
    fix = f"python -m pip install --no-deps -r {requirements.name}"
    return CheckResult("lock", "warning", shown, fix)


def diagnose(repository: Path | None = None) -> list[CheckResult]:
    """Run every check, in the folder with requirements.txt; a check that fails is a finding."""
    here = (repository or Path.cwd()).absolute()
    checks: dict[str, Callable[[], CheckResult]] = {
        "Python": check_python,
        "torch": check_torch,
        "GPU": check_gpu,
        "flash-attn": check_flash_attention,
        "bubblewrap": check_bubblewrap,
        "model": check_model,
        "memory": check_memory,
        "cache disk": check_cache_disk,
        "disk": lambda: check_disk("disk", here, REPO_BYTES),
        "Chromium": check_browser,
        "lock": lambda: check_lock(here / "requirements.txt"),
    }
    findings = []
    for name, check in checks.items():
        try:
            findings.append(check())
        except Exception as error:
            found = f"the check failed ({type(error).__name__}: {error})"
            essential = name in {"model", "cache disk"}
            findings.append(CheckResult(name, "missing", found, INSTALL, essential))
    return findings


def fit(findings: list[CheckResult]) -> bool:
    """Whether nothing essential is missing."""
    return not any(finding.essential and finding.state == "missing" for finding in findings)
