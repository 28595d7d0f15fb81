"""Run a notebook inside a sandbox: nbclient, with a kernel forked from the same process.

For each cell `run` writes one line of JSON with the cell's outputs, which `runner_output` reads as
untrusted. The student's code can change everything in this process; nothing here decides a score.
"""

import asyncio
import json
import os
import signal
import sys
import time
import zipfile
from contextlib import suppress
from functools import partial
from typing import Any

import nbformat
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerBase
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from course_pkg.grading.cell_client import CellClient
from course_pkg.grading.check import CHECKER_FD
from course_pkg.grading.questions.time_limits import crowding

GRACE_S = 5.0  # for a cell to stop after an interrupt, on a quiet machine
PLOTS = "matplotlib_inline.backend_inline"
START_WITHIN_S = 30

nbformat.validate(new_notebook())  # the fork server compiles the schema, which takes 30 ms


class ForkProvisioner(KernelProvisionerBase):
    """Jupyter's interface for starting kernels: here, a forked kernel waits and may continue."""

    pid: int = 0
    exit_code: int | None = None

    @property
    def has_process(self) -> bool:
        return self.pid > 0

    async def poll(self) -> int | None:
        if self.exit_code is None and self.pid:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    async def wait(self) -> int | None:
        while await self.poll() is None:
            await asyncio.sleep(0.01)
        self.pid = 0
        return self.exit_code

    async def send_signal(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    async def kill(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:
        return None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        self.parent.write_connection_file()
        self.connection_info = self.parent.get_connection_info()
        return {"cmd": [], **kwargs}

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        self.pid, go = kwargs["waiting"]
        os.write(go, self.parent.connection_file.encode())
        os.close(go)
        return self.connection_info


def _fork_kernel(environment: dict[str, str], work: str, out: int) -> tuple[int, int]:
    """Fork a kernel; its process id, and the pipe on which it waits for its connection file.

    Args:
        out: the runner's output, which a kernel that outlives the runner must not keep open.
    """
    wait, go = os.pipe()
    pid = os.fork()
    if pid:
        os.close(wait)
        return pid, go
    try:  # the kernel
        os.close(go)
        os.close(out)
        with os.fdopen(wait) as pipe:
            connection_file = pipe.read()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(work)
        app = IPKernelApp.instance(connection_file=connection_file)
        app.config.HistoryManager.enabled = False
        app.config.InteractiveShell.banner1 = ""
        app.config.InteractiveShellApp.ignore_cwd = True
        app.initialize([])
        sys.modules.pop(PLOTS, None)  # imported before there was a kernel, it shows no plots
        sys.path.insert(0, "")  # only now: the kernel must not import the student's files
        app.start()
    finally:
        os._exit(0)


def run(job: dict[str, Any], descriptors: list[int]) -> None:
    """Run the notebook of one submission, as the target of a fork server.

    Args:
        job: work and runtime (folders), cell_timeout_s, max_output_bytes, environment.
        descriptors: for the lines, the checker's socket, and the submission as `pack` returns it.
    """
    out, checker, submission = descriptors
    os.environ.clear()
    os.environ.update(job["environment"])
    for folder in (job["work"], job["runtime"]):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    notebook = _unpack(submission, job["work"])
    environment = {**job["environment"], CHECKER_FD: str(checker)}
    waiting = _fork_kernel(environment, job["work"], out)
    os.close(checker)  # only the kernel keeps it
    with os.fdopen(out, "w", buffering=1, closefd=False) as lines:
        asyncio.run(_execute(notebook, waiting, job, lines))


def _unpack(submission: int, folder: str) -> NotebookNode:
    with os.fdopen(submission, "rb") as source, zipfile.ZipFile(source) as archive:
        first, *others = archive.infolist()
        for member in others:
            archive.extract(member, folder)
        return nbformat.reads(archive.read(first).decode(), as_version=4)


async def _execute(
    notebook: Any, waiting: tuple[int, int], job: dict[str, Any], lines: Any
) -> None:
    manager = AsyncKernelManager(transport="ipc", ip=f"{job['runtime']}/kernel")
    manager.connection_file = f"{job['runtime']}/kernel.json"
    manager.provisioner = ForkProvisioner(kernel_id="k", kernel_spec=None, parent=manager)
    output_bytes = job["max_output_bytes"]
    client = CellClient(
        notebook, output_bytes, km=manager, allow_errors=True, timeout=job["cell_timeout_s"]
    )
    client.startup_timeout = START_WITHIN_S
    code = [n for n, c in enumerate(notebook.cells) if c.cell_type == "code" and c.source.strip()]
    began = time.monotonic()
    end: dict[str, Any] = {"end": "ran"}
    try:
        await manager.start_kernel(waiting=waiting)
        await client.async_start_new_kernel_client()
        _write(lines, {"started": time.monotonic() - began})
        for index in code:
            cell = notebook.cells[index]
            timed_out = False
            client.when_too_much = partial(_write, lines, {"pours": index})
            began = time.monotonic()
            try:
                await client.async_execute_cell(cell, index)
            except CellTimeoutError:
                timed_out = True
            seconds = time.monotonic() - began
            line = {"cell": index, "outputs": _plain(cell.outputs), "s": seconds}
            line |= {"over": client.over, "flooded": client.flooded}
            _write(lines, {**line, "late": timed_out, "ended": not timed_out})
            if timed_out and not await _interrupted(manager, client.kc):
                end = {"end": "stuck", "cell": index}
                break
            if client.ended and index != code[-1]:
                end = {"end": "died", "code": "quit", "cell": index}
                break
    except DeadKernelError:
        end = {"end": "died", "code": await manager.provisioner.poll(), "cell": index}
        _write(lines, {"cell": index, "outputs": _plain(cell.outputs), "ended": False})
    _write(lines, end)


async def _interrupted(manager: AsyncKernelManager, client: AsyncKernelClient) -> bool:
    """Interrupt the kernel; whether it is then ready for the next cell."""
    await manager.provisioner.send_signal(signal.SIGINT)
    message = client.kernel_info()
    until = time.monotonic() + GRACE_S * crowding()
    while (left := until - time.monotonic()) > 0:
        with suppress(Exception):  # Empty, or anything that a hostile kernel sends
            reply = await client.shell_channel.get_msg(timeout=left)
            if reply["parent_header"].get("msg_id") == message:
                return True
    return False


def _plain(outputs: Any) -> Any:
    return json.loads(json.dumps(outputs, default=str))


def _write(lines: Any, what: dict[str, Any]) -> None:
    lines.write(json.dumps(what) + "\n")
