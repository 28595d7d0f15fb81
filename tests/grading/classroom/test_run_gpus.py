"""GPUs for submissions: one at a time on each, in one run and in several."""

import threading

import pytest

from course_pkg.grading.classroom.execution import run_gpus
from course_pkg.grading.classroom.execution.run_gpus import NO_JOBS, GpuPool, NoGpu
from course_pkg.sandbox.gpus import Gpu
from course_pkg.sandbox.namespaces import SandboxFailed
from tests.waiting import wait_until

GPUS = tuple(Gpu(n, f"GPU-fake-{n}", f"Fake {n}", None, ()) for n in range(3))


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(run_gpus, "POLL_S", 0.01)


def test_never_two_submissions_on_one_gpu_and_all_gpus_at_work(tmp_path):
    """Two runs, each with its own pool of the same GPUs, and twelve submissions in each."""
    active = set()
    most = []
    together = threading.Barrier(3)
    lock = threading.Lock()

    def submission(pool):
        with pool.lease() as gpu:
            with lock:
                assert gpu.uuid not in active
                active.add(gpu.uuid)
                most.append(len(active))
            if len(most) <= 3:
                together.wait(120)  # three at the same time, or this fails
            with lock:
                active.remove(gpu.uuid)

    runs = [GpuPool(GPUS, True, folder=tmp_path) for _ in range(2)]
    threads = [threading.Thread(target=submission, args=[runs[n % 2]]) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(most) == 24 and max(most) == 3 and not active


def test_another_runs_gpu_is_taken_when_that_run_is_done_with_it(tmp_path, monkeypatch):
    mine, other = (GpuPool(GPUS[:1], True, folder=tmp_path) for _ in range(2))
    got = []
    tries = []
    locked = run_gpus._locked
    with other.lease():
        monkeypatch.setattr(run_gpus, "_locked", lambda path: tries.append(path) or locked(path))
        waiting = threading.Thread(target=lambda: got.append(mine._take()[0]))
        waiting.start()
        wait_until(lambda: len(tries) > 3)
        assert got == []
    waiting.join(120)
    assert got == [GPUS[0]]
    assert (tmp_path / "course-GPU-fake-0.lock").stat().st_mode & 0o777 == 0o644


def test_a_retired_gpu_goes_to_nobody(tmp_path):
    pool = GpuPool(GPUS[:2], True, folder=tmp_path)
    with pool.lease() as first:
        pool.retire(first, "it is not free")
        with pool.lease() as second:
            assert second != first and len(pool) == 1 and not pool.lost
    for _ in range(3):
        with pool.lease() as again:
            assert again == second
    pool.retire(None, "none is left")
    assert pool.lost
    with pytest.raises(NoGpu, match="none is left"), pool.lease():
        pass


def test_without_a_gpu_an_optional_assignment_runs_and_a_required_one_waits(tmp_path):
    with GpuPool((), False, "no driver").lease() as gpu:
        assert gpu is None
    with pytest.raises(NoGpu, match="no driver"), GpuPool((), True, "no driver").lease():
        pass


def test_an_interrupted_run_waits_for_no_gpu(tmp_path):
    pool = GpuPool(GPUS[:1], True, folder=tmp_path)
    errors = []

    def wait():
        try:
            pool._take()
        except SandboxFailed as error:
            errors.append(str(error))

    with pool.lease():
        thread = threading.Thread(target=wait)
        thread.start()
        pool.close()
        thread.join(120)
    assert errors == ["the run was interrupted"]


@pytest.mark.parametrize(
    ("need", "jobs", "expected"),
    [("required", None, 3), ("optional", 2, 2), ("required", 9, 3), ("required", 0, 0)],
)
def test_the_command_line_says_how_many_gpus_are_used(monkeypatch, need, jobs, expected):
    monkeypatch.setattr(run_gpus, "find_gpus", lambda: (GPUS, ()))
    pool = run_gpus.gpu_pool(need, jobs)
    assert (len(pool), pool.required) == (expected, need == "required")
    assert pool.why == (NO_JOBS if jobs == 0 else "")


def test_a_cpu_assignment_does_not_even_look_for_gpus(monkeypatch):
    monkeypatch.setattr(run_gpus, "find_gpus", lambda: pytest.fail("it looked"))
    assert run_gpus.gpu_pool("none", None) is None and run_gpus.gpu_pool("none", 4) is None
