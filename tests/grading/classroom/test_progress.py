"""The live table, the lines in a pipe, and the summary."""

import io
import re
import threading

import pytest
from rich.console import Console

from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.runs.progress import LAST, RUNNING, ProgressDisplay
from course_pkg.grading.classroom.runs.run_summary import MOST_ODD, summary

from .recorded import HOSTILE, questions, record, unreadable, wrong

NASTY = "[red]x[/red]\x1b[2J\x1b]0;t\x07\n\u202e"


def terminal(width=100, height=50):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )


def piped():
    return Console(file=io.StringIO(), width=200)


def printed(renderable, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


def test_in_a_pipe_one_line_is_printed_per_finished_submission():
    console = piped()
    with ProgressDisplay(console) as show:
        show.expect(3)
        show.started("ada")
        show.finished(record("ada"))
        show.started("ben")
        show.finished(unreadable("ben"))
        show.finished(record("chi"))
    first, *lines = console.file.getvalue().splitlines()
    assert first == "3 submissions; starting the sandboxes"
    assert re.fullmatch(r"ada  graded  24/24  \d+\.\d s", lines[0])
    assert re.fullmatch(
        r"ben  unreadable  0/24  \d+\.\d s  the file breaks off at line 4", lines[1]
    )
    assert lines[2] == "chi  graded  24/24  before" and len(lines) == 3
    assert show.graded == 2


def test_a_warning_is_printed_and_kept_for_the_end():
    console = piped()
    with ProgressDisplay(console) as show:
        show.warn("not graded: 2 students\nhave the id ada")
    assert show.warnings == ["not graded: 2 students have the id ada"]
    assert console.file.getvalue().strip() == show.warnings[0]


@pytest.mark.parametrize("console", [piped, terminal])
def test_student_text_is_never_markup_or_terminal_control(console):
    console = console()
    with ProgressDisplay(console) as show:
        show.started(NASTY)
        show.finished(record(NASTY, state=State.REFUSED, reason=NASTY, remarks=(NASTY,)))
    out = console.file.getvalue() + printed(
        summary([record(NASTY, state=State.REFUSED, reason=NASTY, remarks=(NASTY,))], 1.0)
    )
    assert "[red]x[/red]" in out
    assert "\x1b[2J" not in out and "\x1b]0" not in out and "\x07" not in out
    assert "\u202e" not in out


def test_five_hundred_students_fit_the_table():
    console = terminal(height=50)
    with ProgressDisplay(console) as show:
        show.expect(500)
        for number in range(480):
            show.started(f"s{number:03}")
            show.finished(record(f"s{number:03}"))
        for number in range(480, 500):
            show.started(f"s{number:03}")
        text = printed(show._table())
    assert len(text.splitlines()) <= LAST + RUNNING + 8
    assert "s479" in text and "s468" in text and "s467" not in text
    assert "s480" in text and "and 4 more" in text and "480/500" in text
    assert "per minute" in text


def test_the_table_is_drawn_while_other_threads_report():
    console = terminal()
    with ProgressDisplay(console) as show:
        stop = threading.Event()
        errors = []

        def draw():
            while not stop.is_set():
                try:
                    printed(show._table())
                except Exception as error:
                    errors.append(error)

        drawing = threading.Thread(target=draw)
        drawing.start()
        for number in range(300):
            show.started(str(number))
            if number % 2:
                show.finished(record(str(number)))
        stop.set()
        drawing.join()
    assert errors == [] and "299" in console.file.getvalue()


def test_the_summary_counts_states_scores_times_and_the_rate():
    half = record("ben", questions=questions({"merge": wrong(), "inject": wrong()}), run_s=5.2)
    text = printed(summary([record("ada"), half, record("chi", run_s=4.2), unreadable()], 30.0))
    assert "4: 3 graded, 1 unreadable" in text
    assert "mean 15.0, median 18, quartiles 9 and 24, of 24 points by program\n" in text
    assert "start 0.40 s, run 3.70 s, write 0.10 s" in text
    assert "8.0 per minute, 30.0 s in total" in text


def test_the_summary_says_which_points_wait_for_a_person():
    text = " ".join(printed(summary([record("ada")], 1.0, waiting=4), width=200).split())
    assert "of 24 points by program; 4 more wait for a person" in text


def test_the_summary_explains_every_submission_that_needs_a_look():
    records = [
        record("ada"),
        record("ben", state=State.KERNEL_DIED),
        record("chi", state=State.REFUSED, reason="a link in the zip: " + HOSTILE),
        record("dan", remarks=("a locked cell had been changed",)),
        record("eve", sandbox="NONE: --unsafe-no-sandbox"),
    ]
    text = " ".join(printed(summary(records, 1.0), width=300).split())
    assert "ben kernel-died 24/24 the kernel died; later cells were not run" in text
    assert "chi refused 24/24 a link in the zip: <script>" in text
    assert "dan graded 24/24 a locked cell had been changed" in text
    assert "1 graded WITHOUT a sandbox" in text
    assert "ada" not in text


def test_the_rate_counts_only_submissions_of_this_run():
    out = printed(summary([record("ada"), record("ben")], 60.0, graded=1))
    assert "2 (1 graded before): 2 graded" in out and "1.0 per minute" in out
    assert "none" in printed(summary([], 0.0))


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


def played(show, clock, durations, jobs):
    """Run submissions of these seconds, some at a time; at each end, (seconds left, estimate)."""
    waiting = [(f"s{number:04}", took) for number, took in enumerate(durations)][::-1]
    running = []
    estimates = []
    while waiting or running:
        while waiting and len(running) < jobs:
            student, took = waiting.pop()
            show.started(student)
            running.append((clock.now + took, student))
        running.sort()
        clock.now, student = running.pop(0)
        show.finished(record(student))
        ran = [clock.now - began for began in show._running.values()]
        estimates.append((clock.now, show._left.seconds(len(waiting), ran)))
    return [(clock.now - at, left) for at, left in estimates]


@pytest.mark.parametrize("jobs", [1, 3, 32])
def test_the_time_left_is_right_for_submissions_that_take_the_same_time(jobs):
    clock = Clock()
    with ProgressDisplay(piped(), clock) as show:
        show.expect(320)
        for left, estimate in played(show, clock, [30.0] * 320, jobs)[:-1]:
            assert estimate == pytest.approx(left, rel=0.1, abs=31)


@pytest.mark.parametrize("jobs", [2, 16])
def test_the_time_left_counts_the_slow_ones(jobs):
    clock = Clock()
    durations = [240.0 if number % 20 == 7 else 10.0 + number % 11 for number in range(1_000)]
    with ProgressDisplay(piped(), clock) as show:
        show.expect(1_000)
        for left, estimate in played(show, clock, durations, jobs)[300:900]:
            assert abs(estimate - left) < 0.15 * left + 240  # a slow one may be the last


def test_in_a_pipe_the_time_left_is_printed_once_a_minute():
    console = piped()
    clock = Clock()
    with ProgressDisplay(console, clock) as show:
        show.expect(100)
        for number in range(10):
            show.finished(record(f"b{number}"))  # graded before: they say nothing about the time
        played(show, clock, [20.0] * 90, 2)
    said = [line for line in console.file.getvalue().splitlines() if " done; " in line]
    assert said[0] == "15 of 100 done; about 14 min left"
    assert said[-1] == "93 of 100 done; about 1 min left" and len(said) == 14


def test_the_live_table_shows_the_time_left_and_nothing_at_the_end():
    clock = Clock()
    with ProgressDisplay(terminal(), clock) as show:
        show.expect(7)
        show.started("ada")
        assert "left" not in printed(show._table())
        clock.now += 600
        show.finished(record("ada"))
        assert "about 1 h left" in printed(show._table())
        show.started("ben")
        clock.now += 300
        assert "about 55 min left" in printed(show._table())
        show.finished(record("ben"))
        for name in "cdefg":
            show.finished(record(name))
        assert "left" not in printed(show._table())


def test_the_summary_of_a_large_class_lists_some_that_need_a_look():
    records = [unreadable(f"s{number:04}") for number in range(MOST_ODD + 1_234)]
    text = printed(summary(records, 1.0))
    assert text.count("breaks off") == MOST_ODD and "and 1,234 more" in text
    assert "the class's page lists them all" in text
