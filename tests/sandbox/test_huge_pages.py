"""Huge pages change nothing that a program can see, and no memory that isn't its own."""

import subprocess
import sys

import pytest

from course_pkg.sandbox.huge_pages import HUGE_PAGE, huge_ranges

MOVE = """
import os, sys
from course_pkg.sandbox.huge_pages import HUGE_PAGE, use_huge_pages
kept = [str(number) * 7 for number in range(200_000)]
before = hash(tuple(kept))
moved = use_huge_pages()
assert hash(tuple(kept)) == before
if child := os.fork():
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert hash(tuple(kept)) == before  # what a child writes is its own
    print(moved % HUGE_PAGE, status)
else:
    kept[:] = [text + "!" for text in kept]
    os._exit(int(hash(tuple(kept)) == before))
"""


def test_memory_is_the_same_after_the_move_and_a_child_has_its_own():
    done = subprocess.run([sys.executable, "-c", MOVE], capture_output=True, text=True)
    assert done.stdout == "0 0\n", done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "400000-c00000 r--p 00000000 00:00 0",
        "400000-c00000 rw-s 00000000 00:00 0",
        "400000-c00000 rw-p 00000000 08:01 4711 /usr/lib/libpython3.so",
        "400000-c00000 rw-p 00000000 00:00 0 [stack]",
        "5ff000-7ff000 rw-p 00000000 00:00 0",
    ],
)
def test_memory_of_files_of_others_and_of_less_than_a_huge_page_stays(line):
    assert list(huge_ranges(line)) == []


def test_only_whole_huge_pages_inside_a_mapping_are_moved():
    maps = "3ff000-a01000 rw-p 00000000 00:00 0\nc00000-e00000 rw-p 00000000 00:00 0 [heap]"
    ranges = list(huge_ranges(maps))
    assert ranges == [(0x400000, 0xA00000), (0xC00000, 0xE00000)]
    assert all(edge % HUGE_PAGE == 0 for pair in ranges for edge in pair)
