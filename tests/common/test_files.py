"""Atomic writes, locks and sizes."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from course_pkg.common import files
from course_pkg.common.files import (
    atomic_file,
    lock,
    private_folder,
    readable_size,
    write_atomically,
)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    """Let a test set the process's umask, which is restored after it."""
    old = os.umask(0o022)
    yield os.umask
    os.umask(old)


@pytest.mark.usefixtures("umask")
def test_a_written_file_has_its_content_and_mode(tmp_path):
    for mode, expected in ((None, 0o644), (0o600, 0o600), (0o664, 0o664)):
        path = tmp_path / ("long" * 60)
        write_atomically(path, b"old", mode)
        write_atomically(path, "new", mode)
        assert path.read_bytes() == b"new"
        assert mode_of(path) == expected
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("at", "error"),
    [("write", OSError("disk")), ("write", KeyboardInterrupt()), ("fsync", OSError("disk"))],
)
def test_an_error_leaves_only_the_old_file(tmp_path, monkeypatch, at, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_):
        raise error

    with pytest.raises(type(error)), atomic_file(path) as file:
        file.write(b"half of the n")
        if at == "write":
            fail()
        monkeypatch.setattr(os, "fsync", fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_process_leaves_a_private_folder_that_the_next_one_removes(tmp_path, monkeypatch):
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(files, "FRESH_S", -1)
    (tmp_path / "course-x-old").mkdir()
    (tmp_path / "other").mkdir()
    with private_folder("course-x-") as first, private_folder("course-x-") as second:
        assert first.is_dir() and second.is_dir()  # a living one is locked
        assert set(tmp_path.iterdir()) == {first, second, tmp_path / "other"}
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_lock_excludes_others_until_the_block_ends(tmp_path):
    path = tmp_path / "lock"
    with lock(path), pytest.raises(BlockingIOError), lock(path, wait=False):
        pass
    with lock(path, wait=False) as descriptor:
        os.write(descriptor, b"held")
    assert path.read_bytes() == b"held"


def test_a_lock_file_has_its_mode_under_any_umask(tmp_path, umask):
    umask(0o077)
    with lock(tmp_path / "shared", mode=0o666), lock(tmp_path / "own"):
        pass
    assert mode_of(tmp_path / "shared") == 0o666
    assert mode_of(tmp_path / "own") == 0o600


def test_a_lock_does_not_follow_links(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), lock(tmp_path / "lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from course_pkg.common.files import lock

with lock(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_releases_its_lock(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "lock")]
    assert subprocess.run(command, timeout=300).returncode == -signal.SIGKILL
    with lock(tmp_path / "lock", wait=False):
        pass


def test_sizes_have_three_digits_and_the_largest_fitting_unit():
    sizes = {0: "0 B", 999: "999 B", 1000: "1 kB", 999_499: "999 kB", 999_999: "1 MB"}
    sizes |= {1_234_567_890: "1.23 GB", 2e12: "2 TB", 1.5e15: "1500 TB"}
    assert {count: readable_size(count) for count in sizes} == sizes
