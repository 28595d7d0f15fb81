"""The command's end of a cluster: what waits is bounded, and nothing it is sent can surprise it."""

import os
import platform
import socket
import subprocess
import sys

import psutil
import pytest

from course_pkg.grading.classroom.cluster import cluster_executor, gateway_process
from course_pkg.grading.classroom.cluster.gateway_process import (
    HEAD,
    MAX_NOTE,
    PACKAGE,
    Frame,
    FrameKind,
    gateway_command,
    said,
    to_bytes,
)
from course_pkg.grading.classroom.cluster.messages import WorkerReply, read_request, reply_bytes
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.local_executor import ExecutorLost
from course_pkg.grading.classroom.execution.run_gpus import NoGpu
from course_pkg.grading.classroom.execution.runner_output import RunResult, State
from course_pkg.sandbox import seccomp
from course_pkg.sandbox.namespaces import memory_file
from tests.grading.classroom import NEEDS_SANDBOX
from tests.grading.classroom.gateways import LIMITS, PATIENCE_S, opened, run
from tests.grading.classroom.host import is_running
from tests.waiting import wait_until


@pytest.fixture
def runs(gateway):
    with opened(gateway) as made:
        yield made


def result(**fields):
    return reply_bytes(WorkerReply("result", result=RunResult(**fields)), LIMITS)


def test_a_task_holds_what_the_worker_needs_and_no_secret(runs, gateway):
    future = run(runs)
    frame = gateway.get()
    task = read_request(frame.body)
    assert (task.student, task.key, task.packed) == ("ada", b"key", b"zip")
    assert task.work.limits == LIMITS and task.work.assignment == "bleu"
    gateway.send(Frame(FrameKind.REPLY, frame.number, result(verdicts=b"[]", run_s=2)))
    assert future.result(PATIENCE_S).verdicts == b"[]"
    assert runs.start["need"] == "none" and runs.start["ca"] == ""
    assert "questions.toml" in runs.start["with_files"] and "def " not in runs.start["asked"]


def test_answers_find_their_submissions_in_any_order(runs, gateway):
    futures = {student: run(runs, student) for student in ("ada", "ben", "cy")}
    waiting = [gateway.get() for _ in futures]
    for frame in reversed(waiting):
        name = read_request(frame.body).student
        gateway.send(Frame(FrameKind.REPLY, frame.number, result(reason=name)))
    assert {s: f.result(PATIENCE_S).reason for s, f in futures.items()} == {s: s for s in futures}


def test_the_room_follows_the_workers(runs, gateway):
    assert runs.room() == 1
    gateway.send(Frame(FrameKind.ROOM, 8), said(FrameKind.NOTE, "a\x1b[2J note"))
    runs.ready()
    wait_until(lambda: runs.notes)
    assert runs.room() == 11 and "\x1b" not in runs.notes[0]


def test_the_bytes_in_flight_are_bounded(runs, gateway, monkeypatch):
    monkeypatch.setattr(cluster_executor, "MOST_BYTES", 3_000)
    in_flight = []
    send = runs._send
    monkeypatch.setattr(runs, "_send", lambda frame: in_flight.append(runs._bytes) or send(frame))
    futures = [run(runs, packed=b"x" * size) for size in (2000, 2000, 9000)]
    alone = []  # any two of them are more than may be sent
    for _ in futures:
        frame = gateway.get()
        alone.append(len(frame.body))
        gateway.send(Frame(FrameKind.REPLY, frame.number, result()))
    assert [future.result(PATIENCE_S).state for future in futures] == [State.GRADED] * 3
    assert in_flight == alone


def test_other_answers_have_their_own_ends(runs, gateway):
    killer, waits, failed = (run(runs, student) for student in ("killer", "waits", "failed"))
    for _ in range(3):
        frame = gateway.get()
        gateway.send(
            {
                "killer": Frame(FrameKind.GIVEN_UP, frame.number),
                "waits": said(FrameKind.NO_GPU, "no worker has one", frame.number),
                "failed": Frame(
                    FrameKind.REPLY, frame.number, reply_bytes(WorkerReply("failed", "a"), LIMITS)
                ),
            }[read_request(frame.body).student]
        )
    assert killer.result(PATIENCE_S).state == State.WORKERS_LOST
    assert "--regrade --student" in killer.result().reason
    with pytest.raises(NoGpu, match="no worker has one"):
        waits.result(PATIENCE_S)
    with pytest.raises(RuntimeError, match="a worker could not run it: a"):
        failed.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "has ended: Traceback: it was killed"),
        (to_bytes(said(FrameKind.LOST, "the scheduler is gone")), "the scheduler is gone"),
        (HEAD.pack(FrameKind.REPLY, 1, 2**40), "can't be understood"),
        (HEAD.pack(b"?", 1, 0), "can't be understood"),
        (HEAD.pack(FrameKind.NOTE, 0, MAX_NOTE + 1), "can't be understood"),
    ],
)
def test_a_gateway_that_ends_or_sends_anything_else_ends_the_run(runs, gateway, sent, why):
    future = run(runs)
    gateway.get()
    gateway.theirs.sendall(sent)
    if not sent:
        gateway.theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ExecutorLost, match=f"{why}.*run the same command again to continue"):
        future.result(PATIENCE_S)
    with pytest.raises(ExecutorLost, match=why):
        runs.ready()
    with pytest.raises(ExecutorLost, match=why):
        run(runs).result(PATIENCE_S)


def test_an_error_while_it_is_read_ends_the_run(gateway):
    def full(_):
        raise MemoryError("no room for a note")

    with opened(gateway, full) as runs:
        future = run(runs)
        gateway.get()
        gateway.send(said(FrameKind.NOTE, "a note"))
        with pytest.raises(ExecutorLost, match="can't be understood"):
            future.result(PATIENCE_S)


@NEEDS_SANDBOX
def test_a_gateway_that_hangs_is_killed_with_all_its_processes(monkeypatch):
    monkeypatch.setattr(gateway_process, "END_WITHIN_S", 0.2)
    process = gateway_process.GatewayProcess()
    started = psutil.Process(process._process.pid)
    wait_until(lambda: any(one.name().startswith("python") for one in started.children(True)))
    children = started.children(recursive=True)
    for one in children:
        one.suspend()
    process.end()
    assert process.sock.recv(1) == b""  # nobody waits for it
    psutil.wait_procs(children, PATIENCE_S)
    assert not any(is_running(one) for one in children)
    process.close()


@NEEDS_SANDBOX
def test_the_last_words_are_short_however_much_it_wrote():
    process = gateway_process.GatewayProcess()
    os.ftruncate(process._errors.fileno(), 2**42)
    os.pwrite(process._errors.fileno(), b"the end", 2**42)
    assert process.last_words().strip("\0") == "the end"
    process.end()
    process.close()


def test_a_reply_that_no_run_can_give_costs_that_submission_only(runs, gateway):
    for body in (b"", b"[]", result()[:-1]):
        future = run(runs)
        gateway.send(Frame(FrameKind.REPLY, gateway.get().number, body))
        with pytest.raises(ValueError):
            future.result(PATIENCE_S)
    gateway.send(Frame(FrameKind.REPLY, 10**6, b"for nobody"))
    future = run(runs)
    gateway.send(Frame(FrameKind.REPLY, gateway.get().number, result()))
    assert future.result(PATIENCE_S).state == State.GRADED


def test_an_interrupted_run_waits_for_nothing(runs, gateway):
    futures = [run(runs), run(runs)]
    gateway.get()
    runs.stop()
    for future in futures:
        with pytest.raises(ExecutorLost, match="interrupted"):
            future.result(PATIENCE_S)


def test_waiting_for_the_first_worker_is_said_once(runs, gateway, monkeypatch):
    monkeypatch.setattr(cluster_executor, "SAY_AFTER_S", 0.01)
    waits = []
    wait = runs._changed.wait
    monkeypatch.setattr(runs._changed, "wait", lambda seconds: waits.append(1) or wait(seconds))
    ready = runs.threads.submit(runs.ready)
    wait_until(lambda: len(waits) > 3)
    gateway.send(Frame(FrameKind.ROOM, 1))
    ready.result(PATIENCE_S)
    assert runs.notes == ["waiting for a worker of tcp://127.0.0.1:1 to be ready"]


def test_the_gateway_sees_neither_the_course_nor_a_home(tmp_path):
    line = gateway_command(7)
    shown = [line[i + 2] for i, word in enumerate(line) if word.startswith(("--ro-bind", "--bind"))]
    for hidden in ("/", "/root", "/home", "/etc", "/etc/shadow", str(tmp_path)):
        assert hidden not in shown
    assert "--cap-drop" in line and "--unshare-pid" in line and "--bind" not in line


CODE = """
import os
from course_pkg.grading.classroom.cluster.gateway_process import confine
confine()
assert os.getuid()
for path in ("/proc/sys/kernel/core_pattern", "/x", "/etc/x", "/usr/x", "/dev/shm/x"):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        print("wrote", path)
    except OSError:
        pass
try:
    os.setuid(0)
    print("is root")
except OSError:
    pass
try:
    for path in ("/tmp/x", "/tmp/y"):
        with open(path, "wb") as file:
            file.write(bytes(2**26))
    print("filled the memory")
except OSError:
    pass
status = dict(line.split(":") for line in open("/proc/self/status").read().splitlines())
print(int(status["CapPrm"], 16), int(status["NoNewPrivs"]), int(status["Seccomp"]), end="")
"""


@NEEDS_SANDBOX
def test_code_in_the_gateway_can_change_nothing_on_this_machine():
    """A worker's reply may hold a pickle that runs code there."""
    with memory_file(seccomp.program(platform.machine())) as calls:
        line = gateway_command(7, calls.fileno())
        line = [*line[: line.index("--")], "--", sys.executable, "-c", CODE]
        done = subprocess.run(
            line,
            pass_fds=[calls.fileno()],
            env={"PYTHONPATH": str(PACKAGE.parent)},
            capture_output=True,
            text=True,
        )
    assert (done.stdout, done.stderr) == ("0 1 2", "")


def test_a_worker_has_twice_the_time_that_the_limits_allow():
    within_s = cluster_executor.reply_within_s
    assert within_s(resolve("bleu"), LIMITS) > 2 * LIMITS.time_limit_s
    assert within_s(resolve("lora-script"), LIMITS) > within_s(resolve("ps1"), LIMITS)
