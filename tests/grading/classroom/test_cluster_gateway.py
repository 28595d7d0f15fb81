"""The gateway without Dask: what is tried again, who is refused, and when a run ends."""

import asyncio
import inspect
import selectors

from course_pkg.grading.classroom.cluster import gateway
from course_pkg.grading.classroom.cluster.gateway import Disconnected
from course_pkg.grading.classroom.cluster.gateway_process import HEAD, Frame, FrameKind
from course_pkg.grading.classroom.cluster.messages import (
    Preparation,
    WorkerReply,
    preparation_bytes,
    read_reply,
    reply_bytes,
    work_of,
)
from course_pkg.grading.classroom.cluster.placement import ListedWorker
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.runner_output import RunLimits, RunResult

LIMITS = RunLimits()
WORK = work_of(resolve("bleu"), LIMITS)
ASKED = preparation_bytes(Preparation(WORK))
FIT = WorkerReply("fit", room=1)
LACKS = WorkerReply("lacks")
GRADED = WorkerReply("result", result=RunResult(verdicts=b"[]"))
NO_VERDICTS = WorkerReply("result", result=RunResult(no_verdicts="it took longer than 60 s"))
GRACE_S = 5.0
REPLY_S = 1_800.0
AT = {
    name: f"tcp://127.0.0.1:{port}" for port, name in enumerate(("scheduler", "old", "a", "b"), 1)
}


class Workers:
    """What a test says of Dask. found: the workers. replies: what each says, by address.

    A reply is a WorkerReply, an exception, or a list of them, one for each request; "hangs" never
    ends.
    """

    def __init__(self, **replies):
        self.replies = {AT[name]: said for name, said in replies.items()}
        self.found = {AT[name]: ListedWorker(name, 0.0, name) for name in replies}
        self.asked = []
        self.gone = False

    async def workers(self):
        return AT["scheduler"], dict(self.found)

    async def connects_again(self):
        return False

    async def is_gone(self, address, instance):
        return self.gone or address not in self.found

    async def reply(self, address, payload, gpu):
        self.asked.append((address, payload))
        await asyncio.sleep(0)
        if payload == ASKED and not isinstance(self.replies[address], list):
            said = FIT
        else:
            said = self.replies[address]
            said = said.pop(0) if isinstance(said, list) else said
        if said == "hangs":
            await asyncio.sleep(100 * REPLY_S)
        if inspect.isroutine(said):
            said = said()
        if isinstance(said, Exception):
            raise said
        return reply_bytes(said, LIMITS)

    async def close(self, busy):
        self.busy = busy


class Command:
    """The command's end: what the gateway sends, frame by frame."""

    def __init__(self):
        self.frames = []

    def write(self, data):
        kind, number, _ = HEAD.unpack(data[: HEAD.size])
        self.frames.append(Frame(FrameKind(kind), number, data[HEAD.size :]))

    def of(self, kind):
        return [frame for frame in self.frames if frame.kind == kind]

    def texts(self, kind):
        return [frame.body.decode() for frame in self.of(kind)]


class NoWaiting(selectors.DefaultSelector):
    """Instead of waiting for the next timer, moves the time on to it."""

    now = 0.0

    def select(self, timeout=None):
        assert timeout is not None, "nothing runs, and nothing waits for a time"
        self.now += max(0.0, timeout)
        return super().select(0)


def loop_without_waiting():
    """An event loop with a clock of its own: what happens does not depend on the machine."""
    selector = NoWaiting()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    return loop


def run(workers, *steps, need="none", command=None):
    """Run a gateway with one submission; steps: functions, or conditions to wait for.

    Returns what the command got, and why the run ended, if it did.
    """
    command = command or Command()
    start = {
        "asked": ASKED.decode(),
        "with_files": "files",
        "need": need,
        "grace_s": GRACE_S,
        "reply_s": REPLY_S,
    }

    async def main():
        clock = asyncio.get_running_loop().time
        made = gateway.Gateway(workers, command, start, clock)
        watching = asyncio.create_task(made.watch())
        made.submit(1, b"one")
        for step in steps:
            async with asyncio.timeout(10 * REPLY_S):
                while not step(command) and not watching.done():
                    await asyncio.sleep(gateway.POLL_S)
        why = await watching if watching.done() else None
        watching.cancel()
        await made.close()
        return why

    with asyncio.Runner(loop_factory=loop_without_waiting) as runner:
        return command, runner.run(main())


def answered(command):
    return command.of(FrameKind.REPLY)


def ended(_):
    return False


def test_a_submission_whose_connection_ended_runs_again_and_nobody_is_blamed():
    workers = Workers(a=[FIT, Disconnected("lost"), GRADED])
    command, _ = run(workers, answered)
    (frame,) = answered(command)
    assert read_reply(frame.body, LIMITS).result.verdicts == b"[]"
    assert not command.of(FrameKind.NOTE)


def test_a_submission_whose_worker_was_away_for_a_moment_runs_again():
    """The scheduler lists it again before anybody has noticed."""

    def away():
        workers.gone = not workers.gone
        return RuntimeError("worker is gone")

    workers = Workers(a=[FIT, away, GRADED])
    command, _ = run(workers, lambda _: workers.gone, lambda _: not workers.asked.clear(), answered)
    assert answered(command) and not command.of(FrameKind.NOTE)


def test_a_worker_whose_preparation_was_cut_off_is_asked_again():
    command, _ = run(Workers(a=[Disconnected("lost"), LACKS, FIT, GRADED]), answered)
    assert answered(command) and not command.of(FrameKind.NOTE)


def test_a_worker_that_is_never_ready_is_refused_by_name():
    command, why = run(Workers(a=["hangs"]), ended)
    assert "a: it was not ready within 1800 s" in why
    waiting, refused = command.texts(FrameKind.NOTE)
    assert waiting == gateway.NONE_LEFT and "it was not ready within 1800 s" in refused


def test_a_worker_that_does_not_reply_is_refused_and_what_it_had_runs_elsewhere():
    command, _ = run(Workers(a=[FIT, "hangs"], b=GRADED), answered)
    assert read_reply(answered(command)[0].body, LIMITS).result.verdicts == b"[]"
    (note,) = command.texts(FrameKind.NOTE)
    assert note.startswith("worker a") and "did not reply to a submission within 1800 s" in note


def test_a_result_without_verdicts_runs_on_another_worker():
    command, _ = run(Workers(a=NO_VERDICTS, b=GRADED), answered)
    assert read_reply(answered(command)[0].body, LIMITS).result.verdicts == b"[]"
    command, _ = run(Workers(a=NO_VERDICTS), answered)
    assert read_reply(answered(command)[0].body, LIMITS).result.no_verdicts


def test_a_refused_worker_does_not_end_the_run_while_the_good_one_may_come_back():
    workers = Workers(old=[WorkerReply("unfit", "it is old")], a="hangs")

    def lose(_):
        workers.found.pop(AT["a"])
        return True

    def come_back(command):
        workers.replies[AT["b"]] = GRADED
        workers.found[AT["b"]] = ListedWorker("b", 0.0, "b")
        return True

    def later(_, times=iter(range(40))):  # noqa: B008
        return next(times, None) is None

    running = lambda _: any(payload == b"one" for _, payload in workers.asked)  # noqa: E731
    command, why = run(workers, running, lose, later, come_back, answered)
    assert why is None and answered(command)


def test_a_better_worker_has_some_seconds_to_join_after_the_others_were_refused():
    workers = Workers(old=[WorkerReply("unfit", "it is old")])
    polls = []

    def join(command):
        polls.append(len(command.of(FrameKind.NOTE)))
        if len(polls) * gateway.POLL_S < GRACE_S / 2:
            return False
        workers.replies[AT["b"]] = GRADED
        workers.found[AT["b"]] = ListedWorker("b", 0.0, "b")
        return True

    command, why = run(workers, join, answered)
    assert polls[-2:] == [1, 1]  # it was refused before
    assert why is None and answered(command)


def test_a_replacement_that_is_refused_ends_the_wait():
    workers = Workers(old=[WorkerReply("unfit", "it is old")], a="hangs")

    def replace(_):
        if not any(payload == b"one" for _, payload in workers.asked):
            return False
        workers.found.pop(AT["a"])
        workers.replies[AT["b"]] = [WorkerReply("unfit", "it is old, too")]
        workers.found[AT["b"]] = ListedWorker("b", 0.0, "b")
        return True

    _, why = run(workers, replace, ended)
    assert "no worker of the cluster can grade" in why and "it is old, too" in why


def test_without_a_gpu_many_learn_at_once_that_they_wait():
    command, _ = run(Workers(a=GRADED), lambda c: c.of(FrameKind.NO_GPU), need="required")
    assert command.texts(FrameKind.NO_GPU) == [gateway.NO_WORKER_HAS_ONE]
    assert command.of(FrameKind.ROOM)[-1].number == gateway.ROOM_TO_WAIT


def test_a_gpu_worker_that_is_refused_is_named():
    workers = Workers(a=[WorkerReply("unfit", "it is old")], b=GRADED)
    workers.found[AT["a"]] = ListedWorker("a", 1.0, "a")
    command, _ = run(workers, lambda c: c.of(FrameKind.NO_GPU), need="required")
    assert command.texts(FrameKind.NO_GPU) == ["worker a, which has a GPU, is refused: it is old"]


def test_an_error_of_the_gateway_itself_ends_the_run():
    class Full(Command):
        def write(self, data):
            if data[:1] == FrameKind.REPLY:
                raise MemoryError("no room for a reply")
            super().write(data)

    _, why = run(Workers(a=GRADED), ended, command=Full())
    assert why == "the gateway failed (MemoryError: no room for a reply)"


def test_it_says_that_it_is_alive():
    command, _ = run(Workers(a="hangs"), lambda c: len(c.of(FrameKind.ALIVE)) > 3)
    assert len(command.of(FrameKind.ALIVE)) > 3
