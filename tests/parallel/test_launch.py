"""Processes that start together, end together, and say which one failed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from course_pkg.parallel.launch import RankError, launch


def _wait_for_the_others(group):
    group.all_reduce(torch.ones(1))


def _fail(group, rank, how):
    if group.rank == rank:
        how()
    _wait_for_the_others(group)


def _raise():
    raise KeyError("no such tensor")


FAILURES = {
    "exception": (_raise, "rank 2 of 4 failed: KeyError: 'no such tensor'"),
    "exit": (lambda: os._exit(3), "rank 2 of 4 ended with exit code 3 before it had a result"),
    "sys.exit": (lambda: sys.exit("bye"), "rank 2 of 4 failed: SystemExit: bye"),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 2 of 4 was ended by signal 9"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_rank_that_failed_is_named_and_all_end_within_ten_seconds(name):
    how, message = FAILURES[name]
    before = time.monotonic()
    with pytest.raises(RankError, match=message) as caught:
        launch(_fail, 4, 2, how)
    assert caught.value.rank == 2
    assert time.monotonic() - before < 10
    assert multiprocessing.active_children() == []


def test_the_traceback_of_the_rank_is_a_note():
    with pytest.raises(RankError) as caught:
        launch(_fail, 2, 1, _raise)
    assert "in _raise" in caught.value.__notes__[0]


def test_when_the_time_is_up_each_rank_says_where_it_was():
    with pytest.raises(RankError, match="3 of 3 ranks had not finished after 1 s") as caught:
        launch(_fail, 3, 1, lambda: time.sleep(60), timeout=1)
    message = str(caught.value)
    assert "rank 0 in exchange (collectives.py" in message
    assert "rank 1 in <lambda> (test_launch.py" in message
    assert multiprocessing.active_children() == []


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
import os, time
from course_pkg.parallel.launch import launch

def work(group, file):
    with open(f"{file}{group.rank}", "w") as out:
        out.write(str(os.getpid()))
    time.sleep(60)

if __name__ == "__main__":
    launch(work, 2, FILE)
"""


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranks_end_when_the_process_that_started_them_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("FILE", repr(str(tmp_path / "pid"))))
    files = [tmp_path / f"pid{rank}" for rank in (0, 1)]
    with subprocess.Popen([sys.executable, script]) as process:
        until = time.monotonic() + 60
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        pids = [int(file.read_text()) for file in files]
        process.kill()
    until = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


@pytest.mark.parametrize(
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
