"""Loaded by the workers of the tests' clusters: what some of them do differently, by their names.

A submission of the student "killer" ends the process of its worker, as nothing that a student
writes should be able to. A worker whose name begins with "old" has another version of the package,
and "gpu" a GPU that is none. The grader of "full" has no space left, and "junk" replies with a
pickle that runs code.
"""

import errno
import os
import signal
import tempfile
from pathlib import Path

from course_pkg.grading.classroom.execution import local_executor, run_gpus
from course_pkg.grading.classroom.execution.assignment import ClassAssignment

KILLER = "killer"
PROOF = "/tmp/a-worker-ran-code-here"


class Pickle:
    def __reduce__(self):
        return os.mkdir, (PROOF,)


def dask_setup(worker):
    """Called by Dask in each worker."""
    from course_pkg.grading.classroom.cluster import worker as course

    run = local_executor.LocalExecutor.run_submission
    name = str(worker.name)

    def run_submission(self, student, key, packed, called=()):
        if student.startswith(KILLER):
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        return run(self, student, key, packed)

    local_executor.LocalExecutor.run_submission = run_submission
    handle = course.handle
    if name == "junk":
        course.handle = lambda data, gpu: Pickle() if b'"student"' in data else handle(data, gpu)
    if name.startswith("old"):
        course.judging_hash = lambda: "0" * 64
        course.version = lambda: "course_pkg 0.0.1"
    if name.startswith("gpu"):
        _pretend_to_have_a_gpu()


def _pretend_to_have_a_gpu():
    from tests.sandbox.fake_gpus import FakeGpus

    class Memory:
        peak_bytes = 0
        too_much = False
        measured = True

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def stop(self):
            pass

        def kept_bytes(self):
            return 0

    machine = FakeGpus(Path(tempfile.mkdtemp()), 0)
    os.environ["PATH"] = f"{machine.folder / 'bin'}:{os.environ['PATH']}"
    from course_pkg.sandbox import gpus

    here = gpus.find_gpus(machine.dev, machine.sys)
    run_gpus.find_gpus = lambda: here
    ClassAssignment.gpu = "required"
    run_gpus.GpuMemory = Memory
    run_gpus.TRIAL = "open('/dev/nvidia0').close()"
