"""Processes that start together, end together, and say which one failed."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest
import torch

from course_pkg.acceleration.parallel.launch import RankError, launch
from tests.tables import each_row
from tests.waiting import wait_until


def _wait_for_the_others(group):
    group.all_reduce(torch.ones(1))


def _fail(group, rank, how):
    if group.rank == rank:
        how()
    _wait_for_the_others(group)


def _raise():
    raise KeyError("no such tensor")


class _NoText(Exception):
    def __str__(self):
        raise ValueError("none")


def _raise_without_text():
    raise _NoText


FAILURES = {
    "no text": (_raise_without_text, r"rank 2 of 4 failed: _NoText\b"),
    "exception": (_raise, "rank 2 of 4 failed: KeyError: 'no such tensor'"),
    "exit": (lambda: os._exit(3), "rank 2 of 4 ended with exit code 3 before it had a result"),
    "sys.exit": (lambda: sys.exit("bye"), "rank 2 of 4 failed: SystemExit: bye"),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 2 of 4 was ended by signal 9"),
}


@each_row("name", FAILURES)
def test_the_rank_that_failed_is_named_and_the_others_end_although_they_wait_for_it(name):
    how, message = FAILURES[name]
    with pytest.raises(RankError, match=message) as caught:
        launch(_fail, 4, 2, how, timeout=600)
    assert caught.value.rank == 2
    assert multiprocessing.active_children() == []


def test_the_traceback_of_the_rank_is_a_note():
    with pytest.raises(RankError) as caught:
        launch(_fail, 2, 1, _raise)
    assert "in _raise" in caught.value.__notes__[0]


def test_when_the_time_is_up_each_rank_says_where_it_was():
    for seconds in (2, 20, 200):  # a busy machine may need more until all of them are there
        message = f"3 of 3 ranks had not finished after {seconds} s"
        with pytest.raises(RankError, match=message) as caught:
            launch(_fail, 3, 1, lambda: threading.Event().wait(), timeout=seconds)
        assert multiprocessing.active_children() == []
        message = str(caught.value)
        if "rank 0 in exchange" in message and "rank 1 in <lambda>" in message:
            break
    assert "rank 0 in exchange (collectives.py" in message
    assert "rank 1 in <lambda> (test_lau" in message


def test_results_and_arguments_are_any_objects():
    def answer(group, numbers, scale):  # not importable by name
        return {"sum": numbers.sum() * scale, "rank": group.rank}

    both = launch(answer, 2, torch.arange(4.0), 10)
    assert both == [{"sum": torch.tensor(60.0), "rank": rank} for rank in (0, 1)]


def test_threads_are_shared_between_the_ranks():
    threads = launch(lambda group: torch.get_num_threads(), 2)
    assert threads == [max(1, torch.get_num_threads() // 2)] * 2


def test_a_result_that_cannot_be_copied_is_an_error_of_its_rank():
    with pytest.raises(RankError, match=r"rank [01] of 2 failed: TypeError.*generator"):
        launch(lambda group: (number for number in (1, 2)), 2)


SCRIPT = """
import os, signal, tempfile
from course_pkg.acceleration.parallel.launch import launch

def work(group, file):
    with open(f"{file}{group.rank}", "w") as out:
        out.write(str(os.getpid()))
    signal.pause()

if __name__ == "__main__":
    tempfile.tempdir = FOLDER
    launch(work, 2, FILE, timeout=400)
"""


class _Unreadable:
    """Can be sent, but not read again."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return exec, (f"raise {self.error}",)


@each_row("error", ["KeyError('color')", "EOFError('color')"])
def test_a_result_that_cannot_be_read_again_is_an_error_of_its_rank(error):
    with pytest.raises(RankError, match="result was sent, but can't be read again") as caught:
        launch(lambda group: _Unreadable(error) if group.rank == 1 else None, 2)
    assert caught.value.rank == 1
    assert error[:8] in str(caught.value)


def test_a_rank_that_ends_is_noticed_although_its_child_lives(tmp_path):
    file = tmp_path / "child"

    def leave_a_child_behind():
        if (child := os.fork()) == 0:
            signal.pause()
        file.write_text(str(child))
        os._exit(3)

    with pytest.raises(RankError, match="rank 1 of 2 ended with exit code 3"):
        launch(_fail, 2, 1, leave_a_child_behind, timeout=600)
    child = int(file.read_text())
    assert _runs(child)
    os.kill(child, signal.SIGKILL)


def test_a_launch_inside_a_rank_is_refused():
    with pytest.raises(RankError, match="RuntimeError: launch was called inside a rank"):
        launch(lambda group: launch(print, 2), 2)


def test_ranks_have_the_environment_of_now(monkeypatch):
    launch(print, 1)
    monkeypatch.setenv("COLOR", "green")
    assert launch(lambda group: os.environ["COLOR"], 2) == ["green", "green"]
    monkeypatch.delenv("COLOR")
    assert launch(lambda group: os.environ.get("COLOR"), 2) == [None, None]


def test_a_tensor_that_is_too_long_for_its_receiver_is_explained():
    with pytest.raises(RankError, match=r"signal 6 .*: gloo does this if one rank sends more"):
        launch(lambda group: group.all_gather(torch.ones(4 - 3 * group.rank)), 2)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_script_without_guard_is_told_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from course_pkg.acceleration.parallel.launch import launch\n"
        "launch(lambda group: group.rank, 2)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert 'does the script have `if __name__ == "__main__":`?' in done.stderr.splitlines()[-1]


def _runs(pid):
    """Also False for a zombie: in a container, the first process may not collect orphans."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranks_end_when_the_process_that_started_them_is_killed(tmp_path):
    script = tmp_path / "script.py"
    folder = Path(tempfile.mkdtemp())  # a socket's path has at most 107 characters
    text = SCRIPT.replace("FILE", repr(str(tmp_path / "pid")))
    script.write_text(text.replace("FOLDER", repr(str(folder))))
    files = [tmp_path / f"pid{rank}" for rank in (0, 1)]
    with subprocess.Popen([sys.executable, script]) as process:
        wait_until(lambda: all(file.exists() and file.read_text() for file in files), 300)
        pids = [int(file.read_text()) for file in files]
        process.kill()
    wait_until(lambda: not any(_runs(pid) for pid in pids), 100)
    assert not list(folder.glob("ranks-*"))
    shutil.rmtree(folder)


@each_row(
    ("arguments", "message"),
    [
        (("work", 2), "function must be callable, got 'work'"),
        ((print, 0), "processes must be an integer of at least 1, got 0"),
        ((print, 65), "processes must be at most 64, got 65"),
    ],
)
def test_arguments_are_checked_before_anything_starts(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        launch(*arguments)
