"""A hostile worker that has taken over the gateway: what it can print, and how long it can wait."""

import socket

import pytest

from course_pkg.grading.classroom.cluster import cluster_executor, gateway_process
from course_pkg.grading.classroom.cluster.gateway_process import (
    MAX_NOTE,
    MOST_BODY,
    Frame,
    FrameKind,
    Liveness,
    Notes,
    receive,
    said,
    to_bytes,
)
from course_pkg.grading.classroom.cluster.messages import WorkerReply, reply_bytes
from course_pkg.grading.classroom.cluster.placement import ListedWorker
from course_pkg.grading.classroom.execution.local_executor import ExecutorLost
from course_pkg.grading.classroom.execution.run_gpus import NoGpu
from course_pkg.grading.classroom.execution.runner_output import RunResult
from tests.grading.classroom.gateways import LIMITS, PATIENCE_S, opened, run
from tests.grading.classroom.test_cluster_gateway import LACKS, Workers
from tests.grading.classroom.test_cluster_gateway import run as run_gateway
from tests.waiting import wait_until

MAX_TEXT = gateway_process.MOST_NOTES * gateway_process.NOTE_LENGTH + 200
FLOOD = 500  # notes


@pytest.mark.parametrize("machines", [1, FLOOD])
def test_a_flood_of_notes_prints_a_bounded_number_of_lines(gateway, machines, monkeypatch):
    monkeypatch.setattr(gateway_process, "NOTE_EVERY_S", 1e9)  # however slowly it is read
    with opened(gateway) as runs:
        text = "\x1b[2J\x1b]0;owned\x07" + "x" * MAX_NOTE
        for number in range(FLOOD):
            gateway.send(said(FrameKind.NOTE, text, number % machines))
        gateway.send(Frame(FrameKind.ROOM, 1))
        wait_until(lambda: runs.room() > 1)  # all notes before it were read
    shown = runs.notes
    *lines, last = shown
    assert len(lines) == (
        gateway_process.NOTES_PER_MACHINE if machines == 1 else gateway_process.NOTES_AT_ONCE
    )
    assert sum(map(len, shown)) < MAX_TEXT
    assert not any("\x1b" in line or "\x07" in line or "\n" in line for line in shown)
    assert last.startswith(f"{FLOOD - len(lines):,} more notes about the cluster were left out")


def test_notes_come_back_slowly_after_many_and_end_after_the_last():
    now = [0.0]
    shown = []
    made = Notes(shown.append, clock=lambda: now[0])
    made.close()
    assert shown == []  # nothing was left out
    for number in range(1_000):
        made.take(number, f"note {number}")
    assert len(shown) == gateway_process.NOTES_AT_ONCE
    now[0] += gateway_process.NOTE_EVERY_S
    for number in range(1_000):
        made.take(number, "again")
    assert len(shown) == gateway_process.NOTES_AT_ONCE + 1
    for number in range(1_000):
        now[0] += gateway_process.NOTE_EVERY_S
        made.take(number, "much later")
    assert len(shown) == gateway_process.MOST_NOTES
    made.close()
    assert shown[-1].startswith(f"{3_000 - gateway_process.MOST_NOTES:,} more notes")


def test_what_is_said_of_one_submission_is_as_short_as_a_note(gateway):
    with opened(gateway) as runs:
        future = run(runs)
        number = gateway.get().number
        gateway.send(said(FrameKind.NO_GPU, "\x1b[2J" + "z" * 4_000, number))
        with pytest.raises(NoGpu) as error:
            future.result(PATIENCE_S)
    assert len(str(error.value)) == gateway_process.NOTE_LENGTH and "\x1b" not in str(error.value)


def take_all(gateway, runs, *sent):
    """Send frames and wait until the run has taken them: it tells its room."""
    room = runs._room + 1
    gateway.send(*sent, Frame(FrameKind.ROOM, room))
    wait_until(lambda: runs._room == room)


def test_notes_and_empty_promises_are_no_sign_of_life(gateway):
    with opened(gateway) as runs:
        future = run(runs)
        gateway.get()
        for _ in range(4):
            gateway.now += cluster_executor.SILENT_S / 2
            take_all(gateway, runs, Frame(FrameKind.ALIVE))
        assert not future.done()
        for number in range(5):
            gateway.now += cluster_executor.SILENT_S / 4
            gateway.send(
                said(FrameKind.NOTE, "still here"),
                Frame(FrameKind.ROOM, number),
                Frame(FrameKind.REPLY, 10**6, b"for nobody"),
            )
            if number < 3:  # afterwards the time is over, and nothing is read any more
                wait_until(lambda read=number + 1: len(runs.notes) == read)
        with pytest.raises(ExecutorLost, match=r"has said nothing for 120 s"):
            future.result(PATIENCE_S)
    assert runs.notes


def test_a_note_that_arrives_byte_by_byte_is_no_sign_of_life(gateway):
    with opened(gateway) as runs:
        future = run(runs)
        gateway.get()
        for byte in to_bytes(said(FrameKind.NOTE, "x" * 4_000))[:400]:
            gateway.now += cluster_executor.SILENT_S / 300
            gateway.theirs.sendall(bytes([byte]))
            if future.done():
                break
        with pytest.raises(ExecutorLost, match=r"has said nothing for 120 s"):
            future.result(PATIENCE_S)


def test_a_gateway_that_lives_but_delivers_nothing_ends_the_run(gateway, monkeypatch):
    monkeypatch.setattr(cluster_executor, "SILENT_S", 1e6)
    with opened(gateway) as runs:
        stuck_s = cluster_executor.ATTEMPTS * runs.start["reply_s"]
        gateway.now += stuck_s + 1
        take_all(gateway, runs, Frame(FrameKind.ALIVE))
        runs._require_running()  # nothing waits: a worker may come late
        future = run(runs)
        gateway.get()
        gateway.now += 0.9 * stuck_s
        take_all(gateway, runs, Frame(FrameKind.ALIVE))
        assert not future.done()
        gateway.now += 0.2 * stuck_s
        gateway.send(Frame(FrameKind.ALIVE))
        with pytest.raises(ExecutorLost, match="no submission has ended for"):
            future.result(PATIENCE_S)


def test_every_submission_that_ends_gives_the_next_ones_the_whole_time(gateway, monkeypatch):
    monkeypatch.setattr(cluster_executor, "SILENT_S", 1e6)
    body = reply_bytes(WorkerReply("result", result=RunResult(verdicts=b"[]")), LIMITS)
    with opened(gateway) as runs:
        futures = [run(runs, name) for name in "abc"]
        numbers = [gateway.get().number for _ in futures]
        for ended, number in enumerate(numbers, 1):
            gateway.now += 0.6 * cluster_executor.ATTEMPTS * runs.start["reply_s"]
            take_all(gateway, runs, Frame(FrameKind.ALIVE), Frame(FrameKind.REPLY, number, body))
            wait_until(lambda ended=ended: sum(future.done() for future in futures) == ended)
        assert [future.result().verdicts for future in futures] == [b"[]"] * 3


def test_a_worker_that_comes_back_under_other_names_is_one_machine():
    """It joins at another port each time, and is refused each time."""
    workers = Workers()
    for port in range(100, 140):
        address = f"tcp://127.0.0.1:{port}"
        workers.found[address] = ListedWorker(f"name-{port}", 0.0, f"instance-{port}")
        workers.replies[address] = [LACKS, LACKS]
    command, _ = run_gateway(workers, lambda c: len(c.of(FrameKind.NOTE)) == 40)
    sent = command.of(FrameKind.NOTE)
    assert len(sent) == 40 and len({frame.number for frame in sent}) == 1 and sent[0].number
    shown = []
    made = Notes(shown.append)
    for frame in sent:
        made.take(frame.number, frame.body.decode())
    assert len(shown) == gateway_process.NOTES_PER_MACHINE
    made.take(sent[0].number + 1, "worker b of another machine is refused")
    assert shown[-1] == "worker b of another machine is refused"


def test_a_gateway_that_sends_without_a_pause_does_not_put_off_the_end():
    clock = iter([2.0, 1.0, 0.0])  # seconds left: for a head, for half a body, and then none
    here, there = socket.socketpair()
    with here, there:
        there.sendall(to_bytes(said(FrameKind.NOTE, "busy")) * 2)
        assert receive(here, MOST_BODY, lambda: next(clock)).body == b"busy"
        with pytest.raises(TimeoutError):  # although the next frame is there
            receive(here, MOST_BODY, lambda: next(clock))


def test_only_the_end_of_a_submission_resets_the_second_clock():
    now = [0.0]
    made = Liveness(10, 100, clock=lambda: now[0])
    for _ in range(11):
        now[0] += 9
        made.heard()
    assert made.seconds_left(waiting=True) == 1 and made.seconds_left(waiting=False) == 10
    made.ended()
    assert made.seconds_left(waiting=True) == 10


@pytest.mark.parametrize("waiting", [True, False])
def test_the_clock_that_runs_out_first_is_named_also_when_the_wait_ends_early(waiting):
    now = [0.0]
    made = Liveness(10, 100, clock=lambda: now[0])
    now[0] = 95.0
    made.heard()
    now[0] += 4.999 if waiting else 9.999
    assert 0 < made.seconds_left(waiting) < 0.01
    assert made.why(waiting).startswith("no submission" if waiting else "the gateway")
