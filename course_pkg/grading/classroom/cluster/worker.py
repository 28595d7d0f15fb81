"""What runs in the workers of a cluster: `handle` gets a request and returns a reply, as bytes.

A worker's process never runs a student's code: it keeps the fork servers of one assignment, which
fork the sandboxed kernels and checkers.
"""

import atexit
import functools
import itertools
import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from course_pkg.common.files import private_folder
from course_pkg.grading import assignments as checks
from course_pkg.grading.classroom.cluster.messages import (
    MAX_WORDS,
    Preparation,
    RunWork,
    SubmissionTask,
    WorkerReply,
    read_request,
    reply_bytes,
    version,
)
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.grade_key import (
    checks_hash,
    current_judging_hash,
    judging_hash,
)
from course_pkg.grading.classroom.execution.local_executor import SLOTS, LocalExecutor
from course_pkg.grading.classroom.execution.run_gpus import NoGpu
from course_pkg.grading.classroom.execution.runner_output import NoSandbox
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.display import one_line
from course_pkg.grading.questions.question import QuestionError, parse_questions
from course_pkg.sandbox.namespaces import SandboxFailed
from course_pkg.sandbox.probe import SandboxState, probe

CHANGED = "its package has changed since it was started: start the worker again"


class Unfit(RuntimeError):
    """This worker can't run the submissions; the message says why."""


class WarmExecutor:
    """The executor of this process: made for the first task, kept for the next ones.

    A task of another assignment or with other limits waits until the running submissions have
    ended, and replaces it. Later tasks wait behind it, so that two runs take turns.

    Args:
        make: starts an executor.
        sandbox: says whether submissions can be confined here.
    """

    def __init__(
        self,
        make: Callable[..., LocalExecutor] = LocalExecutor,
        sandbox: Callable[[], SandboxState] = probe,
    ) -> None:
        self._make = make
        self._sandbox = sandbox
        self._changed = threading.Condition()
        self._users = 0
        self._waiting: list[list[object]] = []  # what each wants, in the order in which they came
        self._made_for: tuple[object, ...] = ()
        self._executor: LocalExecutor | None = None
        self._runs: dict[str, int] = {}  # run -> its submissions in this process
        self._stopped: set[str] = set()  # runs
        self._received: dict[str, Path] = {}  # checks by their hash
        self._keep: list[ExitStack] = []  # the folders are removed with them
        # A fork server ends with the thread that has started it.
        self._owner = ThreadPoolExecutor(1, "course-fork-servers")

    @contextmanager
    def use(self, work: RunWork, gpu: bool, jobs: int, hidden: Path) -> Iterator[LocalExecutor]:
        """The executor for the work, ready. Raises what `LocalExecutor.ready` raises."""
        wanted = (work.assignment, work.checks, work.limits, gpu, jobs)
        with self._changed:
            self._wait_for_turn(wanted, work.run)
            if self._made_for != wanted:
                self.close()
                if (
                    current_judging_hash() != work.judging
                ):  # new fork servers would import other code
                    raise Unfit(CHANGED)
                self._show_checks(work)
                gpu_jobs = None if gpu else 0
                arguments = (resolve(work.assignment), hidden, work.limits, jobs, gpu_jobs)
                self._executor = self._owner.submit(self._start, *arguments).result()
                self._made_for = wanted
            self._users += 1
            self._runs[work.run] = self._runs.get(work.run, 0) + 1
        failed = False
        try:
            yield self._executor
        except SandboxFailed:  # perhaps because the fork servers are gone
            failed = True
            raise
        finally:
            with self._changed:
                self._made_for = () if failed else self._made_for
                self._users -= 1
                self._runs[work.run] -= 1
                self._changed.notify_all()

    def _start(self, *arguments: object) -> LocalExecutor:
        with ExitStack() as stack:
            executor = stack.enter_context(self._make(*arguments))
            executor.ready()
            stack.pop_all()
        return executor

    def _wait_for_turn(self, wanted: tuple[object, ...], run: str) -> None:
        mine = [wanted]

        def my_turn() -> bool:
            if run in self._stopped:
                return True
            before = itertools.takewhile(lambda other: other is not mine, self._waiting)
            fits = not self._users or self._made_for == wanted
            return fits and all(other == mine for other in before)

        self._waiting.append(mine)
        try:
            self._changed.wait_for(my_turn)
        finally:
            self._waiting[:] = [other for other in self._waiting if other is not mine]
            self._changed.notify_all()
        if run in self._stopped:
            raise SandboxFailed("the run was interrupted")

    def stop(self, run: str) -> None:
        """End the submissions of a run, unless another run has some here at the same time."""
        with self._changed:
            self._stopped.add(run)
            self._changed.notify_all()
            if self._executor is None or not 0 < self._users == self._runs.get(run, 0):
                return
            self._made_for = ()
            executor = self._executor  # it can't be used again
        executor.stop()

    def close(self) -> None:
        executor = self._executor
        self._executor = None
        self._made_for = ()
        if executor is not None:
            executor.__exit__(None, None, None)

    def reply(
        self, request: SubmissionTask | Preparation, gpu: bool, threads: int, hidden: Path
    ) -> WorkerReply:
        """The reply to a request; never raises for what a submission did.

        Args:
            gpu: whether submissions get this worker's GPUs.
            threads: of the worker, which runs as many submissions at a time.
            hidden: the folder that no sandbox may see.
        """
        work = request.work
        try:
            if judging_hash() != work.judging:
                raise Unfit(
                    f"it has {version()}; expected {work.version}: install the same package and "
                    "libraries there, from the same requirements.txt, under the same Python, and "
                    "start the worker again"
                )
            if not (state := self._sandbox()).ok:
                raise NoSandbox(state)
            if isinstance(request, Preparation) and request.files is not None:
                self.receive(work, request.files)
            if not self.has(work):
                return WorkerReply("lacks")
            with self.use(work, gpu, max(1, min(threads, SLOTS)), hidden) as executor:
                if isinstance(request, Preparation):
                    if gpu and (why := executor.without_gpu()):
                        return WorkerReply("no-gpu", why[:MAX_WORDS])
                    return WorkerReply("fit", room=executor.room())
                asked = (request.student, request.key, request.packed, request.called)
                return WorkerReply("result", result=executor.run_submission(*asked))
        except (Unfit, NoSandbox) as error:
            return WorkerReply("unfit", one_line(str(error), MAX_WORDS))
        except NoGpu as error:
            return WorkerReply("no-gpu", one_line(str(error), MAX_WORDS))
        except Exception as error:  # the grader's own error, as on one machine
            return WorkerReply("failed", one_line(f"{type(error).__name__}: {error}", 500))

    def receive(self, work: RunWork, files: dict[str, str]) -> None:
        """Keep checks that this worker's package lacks. Raises Unfit if they are other ones."""
        contents = {name: text.encode() for name, text in files.items()}
        with ExitStack() as stack:
            made = stack.enter_context(private_folder("course-checks-"))
            folder = made / work.assignment.replace("-", "_")
            for name, content in contents.items():
                path = folder / name
                if not path.resolve().is_relative_to(folder.resolve()):
                    raise Unfit(f"{name!r} leaves the folder of the checks")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            try:
                questions = parse_questions(work.assignment, files.get("questions.toml", ""))
                same = checks_hash(questions, contents) == work.checks
            except QuestionError:
                same = False
            if not same:
                raise Unfit(
                    "the checks that arrived, or what they import here, differ from those sent"
                )
            self._received.setdefault(work.checks, made)
            self._keep.append(stack.pop_all())

    def has(self, work: RunWork) -> bool:
        """Whether the checks are those of the work. Raises Unfit if the package has others."""
        folder = registry.ASSIGNMENTS / work.assignment.replace("-", "_")
        own = (folder / "questions.toml").is_file()
        if own and resolve(work.assignment).hash != work.checks:
            raise Unfit(f"it has another version of the checks of {work.assignment}")
        return own or not work.checks or work.checks in self._received

    def _show_checks(self, work: RunWork) -> None:
        """Let the registry, and processes started from now on, find the received checks."""
        folder = self._received.get(work.checks)
        os.environ.pop(registry.RECEIVED, None)
        checks.__path__[:] = [str(registry.ASSIGNMENTS)]
        if folder is not None:
            os.environ[registry.RECEIVED] = str(folder)
            checks.__path__.append(str(folder))


@functools.cache
def warm_executor() -> WarmExecutor:
    """The executor that this process keeps."""
    made = WarmExecutor()
    atexit.register(made.close)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2**16), most))
    return made


def handle(data: bytes, gpu: bool) -> bytes:
    """The reply to a request, both as bytes: see `WarmExecutor.reply`."""
    from distributed import get_worker

    request = read_request(data)
    worker = get_worker()
    hidden = Path(worker.local_directory)
    reply = warm_executor().reply(request, gpu, worker.state.nthreads, hidden)
    return reply_bytes(reply, request.work.limits)


def stop(run: str) -> None:
    """End the submissions of a run in this process; returns at once."""
    threading.Thread(target=warm_executor().stop, args=(run,)).start()
