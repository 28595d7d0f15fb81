"""Huge pages change nothing that a program can see, and no memory that isn't its own."""

import subprocess
import sys

from course_pkg.sandbox.fork_process import HUGE_PAGE, huge_ranges

MOVE = """
import os, sys
from course_pkg.sandbox.fork_process import HUGE_PAGE, use_huge_pages
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


MAPPINGS = [  # lines of /proc/self/maps, and what is moved
    ("3ff000-a01000 rw-p 00000000 00:00 0", [(0x400000, 0xA00000)]),
    ("c00000-e00000 rw-p 00000000 00:00 0 [heap]", [(0xC00000, 0xE00000)]),
    ("5ff000-7ff000 rw-p 00000000 00:00 0", []),
    ("400000-c00000 r--p 00000000 00:00 0", []),
    ("400000-c00000 rw-s 00000000 00:00 0", []),
    ("400000-c00000 rw-p 00000000 08:01 4711 /usr/lib/libpython3.so", []),
    ("400000-c00000 rw-p 00000000 00:00 0 [stack]", []),
]


def test_only_whole_huge_pages_of_the_processs_own_memory_are_moved():
    assert [row for row in MAPPINGS if list(huge_ranges(row[0])) != row[1]] == []
    edges = [edge for _, ranges in MAPPINGS for pair in ranges for edge in pair]
    assert all(edge % HUGE_PAGE == 0 for edge in edges)
