"""Kernels for pages, forked from a process that has imported what most pages import.

Importing torch, transformers and matplotlib takes 5 to 8 seconds of a core, and most pages need
them. The fork server of multiprocessing imports them once, and loads the model once
(page_model.py); each page's kernel is a fork of it, a process of its own. Where there is no fork
server (Windows), each kernel is started in the usual way.

matplotlib chooses its backend when it is imported, so the one of notebooks is named before.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.manager import AsyncKernelManager, KernelManager
from jupyter_client.provisioning import LocalProvisioner

SERVER = "forkserver"
PRELOAD = [
    "jupyter_book.cli.main",  # every fork imports the main script's module
    "ipykernel.kernelapp",
    "page_kernels",
    "course_pkg.lm.load",
    "transformers.generation.utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "matplotlib.pyplot",
    "page_model",
]
MORE = ["peft", "scipy.stats", "nltk"]  # what some pages import, worth it if many pages run
MANY = 20
BACKEND = "module://matplotlib_inline.backend_inline"  # as ipykernel sets it


def manager_class() -> type[KernelManager]:
    """What starts the kernels of pages on this machine."""
    return ForkedKernelManager if start_server() else AsyncKernelManager


def start_server(pages: int = 1) -> bool:
    """Start the fork server, unless it runs; False if there is none here.

    It imports while this process goes on. pages: how many will run.
    """
    if SERVER not in multiprocessing.get_all_start_methods():
        return False
    os.environ.setdefault("MPLBACKEND", BACKEND)
    context = multiprocessing.get_context(SERVER)
    context.set_forkserver_preload([*PRELOAD, *(MORE if pages >= MANY else [])])
    forkserver.ensure_running()
    return True


def run_kernel(connection_file: str, folder: str, env: dict[str, str]) -> None:
    """In the forked process: become a kernel, until it is shut down or the fork server ends.

    It leads a process group of its own, so that the manager's signals also reach what it starts.
    Its path is that of a kernel in Jupyter, without the folder of this module.
    """
    from ipykernel.kernelapp import IPKernelApp

    gc.freeze()  # what is loaded already is no garbage: collections need not look through it
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    own = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry not in ("", own)]
    sys.argv = ["ipykernel_launcher.py", "-f", connection_file]
    if page_model := sys.modules.get("page_model"):
        page_model.share()
    settings = {"parent_handle": os.getppid(), "log_level": logging.ERROR}
    IPKernelApp.launch_instance(argv=sys.argv[1:], **settings)


class ForkedProcess:
    """A forked kernel with the methods of `subprocess.Popen` that a provisioner calls."""

    stdin = stdout = stderr = None

    def __init__(self, connection_file: str, folder: str, env: dict[str, str]) -> None:
        context = multiprocessing.get_context(SERVER)
        self._process = context.Process(target=run_kernel, args=(connection_file, folder, env))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to it, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


class ForkedProvisioner(LocalProvisioner):
    """Forks a kernel where `LocalProvisioner` would start a program."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        self.cwd = kwargs.get("cwd") or os.getcwd()
        env = kwargs.get("env") or dict(os.environ)
        self.process = ForkedProcess(self.parent.connection_file, str(self.cwd), env)
        self.pid = self.pgid = self.process.pid
        return self.connection_info


class ForkedKernelManager(AsyncKernelManager):
    """Manages kernels that are forks of the fork server."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.provisioner = ForkedProvisioner(kernel_spec=self.kernel_spec, parent=self)
