"""What a submission gets with a GPU, and how its use of the GPU enters the result.

A submission without a GPU gets no device file, and an environment that names no GPU. A trial runs
before the first submission: a GPU that can't be used in a sandbox is no student's fault.

Chapter: appendix/gpu.
"""

from dataclasses import replace
from types import TracebackType
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from course_pkg.files import readable_size
from course_pkg.sandbox.gpu_memory import GpuMemory
from course_pkg.sandbox.gpus import Gpu, library_path
from course_pkg.sandbox.policy import View
from course_pkg.sandbox.process import SandboxedProcess

from ..contract.display import one_line
from ..results.states import State
from .gpu_pool import GpuPool
from .runner_output import RunResult

NOT_MEASURED = "the memory that it used of the GPU could not be measured, nor that it is free again"
TRIAL = """
import torch

if torch.version.cuda is None:
    raise RuntimeError(f"torch {torch.__version__} is a CPU build")
assert int(torch.ones(2, device="cuda").sum()) == 2
"""


class GpuRun:
    """One submission's use of a GPU. A context manager around the life of its kernel.

    limit_bytes: of the GPU's memory; above it the kernel is killed. None for no limit.
    """

    def __init__(
        self, gpu: Gpu, pool: GpuPool, limit_bytes: int | None, kernel: SandboxedProcess
    ) -> None:
        self.gpu, self._pool, self._limit = gpu, pool, limit_bytes
        self._memory = GpuMemory(gpu, limit_bytes, kernel.kill)

    def __enter__(self) -> "GpuRun":
        self._memory.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._memory.stop()

    def ended(self, result: RunResult) -> None:
        """Fill in the result, after the kernel was killed. Retires a GPU that is not free again."""
        self._memory.stop()
        kept, peak = self._memory.kept_bytes(), self._memory.peak_bytes
        result.gpu, result.gpu_peak_bytes = self.gpu.name, peak
        if self._memory.too_much:
            used, most = readable_size(peak or 0), readable_size(self._limit or 0)
            result.state = State.OUT_OF_MEMORY
            result.reason = f"it used {used} of the GPU's memory; its limit is {most}"
        if not self._memory.measured:
            result.remarks += (NOT_MEASURED,)
        if kept:
            why = (
                f"{readable_size(kept)} of the memory of {self.gpu} stayed in use after it was "
                "killed, by it or by another program"
            )
            result.remarks += (f"{why}; this run gave that GPU to nobody else",)
            self._pool.retire(self.gpu, f"{why}: see `nvidia-smi`")


def gpu_view(view: View | None, gpu: Gpu | None) -> View | None:
    """What a sandbox shows, with the files of a GPU if it has one."""
    if view is None or gpu is None:
        return view
    return replace(view, readable=view.readable + gpu.readable, devices=dict(gpu.devices))


def gpu_environment(gpu: Gpu | None, limit_bytes: int | None) -> dict[str, str]:
    """Environment variables that name the GPU of a submission, or say that there is none.

    >>> gpu_environment(None, None)
    {'CUDA_VISIBLE_DEVICES': ''}
    """
    if gpu is None:
        return {"CUDA_VISIBLE_DEVICES": ""}
    found = {"CUDA_VISIBLE_DEVICES": gpu.uuid}
    if folders := library_path():
        found["LD_LIBRARY_PATH"] = folders
    if limit_bytes and gpu.total_bytes and limit_bytes < gpu.total_bytes:
        # An honest program gets torch's OutOfMemoryError before the watchdog sees the limit.
        share = f"per_process_memory_fraction:{limit_bytes / gpu.total_bytes:.4f}"
        found["PYTORCH_CUDA_ALLOC_CONF"] = share
    return found


def fork_server_environment(pool: GpuPool | None) -> dict[str, str]:
    """Environment variables of the fork server: no import in it may touch a GPU.

    A check whether there is a GPU would start the driver, which then fails in every child.
    """
    quiet = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    folders = library_path() if pool else ""
    return {**quiet, **({"LD_LIBRARY_PATH": folders} if folders else {})}


def trial_notebook(gpu: bool) -> NotebookNode:
    """A notebook that computes on the GPU; without one, an empty notebook."""
    return new_notebook(cells=[new_code_cell(TRIAL)] if gpu else [])


def trial_failure(result: RunResult) -> str:
    """Why the trial on a GPU failed; "" if it did not."""
    if result.state != State.GRADED:
        return result.reason
    for output in result.outputs.get(0, []):
        if output.get("output_type") == "error":
            return _error(output)
    return ""


def _error(output: dict[str, Any]) -> str:
    return one_line(f"{output.get('ename')}: {output.get('evalue')}", 300)
