"""What the wall around a command keeps out, tried with real commands."""

import subprocess

import pytest

from course_pkg.sandbox.policy import confined
from course_pkg.sandbox.probe import probe

pytestmark = pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}")


def run(script, **walls):
    return subprocess.run(
        confined(["sh", "-c", script], **walls), capture_output=True, text=True, timeout=30
    )


def test_only_the_named_folders_can_be_written(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    assert run(f"echo x > {inside}/file", writable=[inside]).returncode == 0
    assert (inside / "file").read_text() == "x\n"
    assert run(f"echo x > {outside}/file", writable=[inside]).returncode != 0
    assert not (outside / "file").exists()


def test_there_is_no_network_but_loopback():
    assert run("cat /proc/net/dev").stdout.count(":") == 1


def test_other_processes_are_not_seen():
    assert len(run("echo /proc/[0-9]*").stdout.split()) <= 3


def test_without_bubblewrap_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("course_pkg.sandbox.policy.find_bubblewrap", lambda: None)
    with pytest.raises(FileNotFoundError, match="apt-get install bubblewrap"):
        confined(["true"])
