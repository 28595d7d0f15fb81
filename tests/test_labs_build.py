"""`tools/build-labs`: what it says and leaves where labs can't be built."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = ("sh", "mkdir", "dirname", "date", "rm", "cmp", "cp", "tail")


@pytest.fixture
def course(tmp_path):
    """A folder with what the script reads, and labs that were built before."""
    for name in ("tools/build-labs", "book/_labs/package.json", "book/_labs/package-lock.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "_build/labs/dist").mkdir(parents=True)
    (tmp_path / "_build/labs/dist/built.txt").write_text("old\n")
    return tmp_path


def build(course: Path, programs: dict[str, str], *options: str) -> subprocess.CompletedProcess:
    """Run the script where only these programs exist. programs: names, and what each runs."""
    place = course / "bin"
    place.mkdir()
    for name in PROGRAMS:
        (place / name).symlink_to(shutil.which(name))
    for name, script in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{script}\n")
        (place / name).chmod(0o755)
    return subprocess.run(
        ["tools/build-labs", *options],
        cwd=course,
        env={"PATH": str(place)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("options", [(), ("--strict",)])
def test_without_npm_one_line_says_so_and_old_labs_are_removed(course, options):
    done = build(course, {}, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "labs     skipped: npm is not installed (sudo apt-get install npm); "
        "the book is built without labs"
    ]
    assert not (course / "_build/labs/dist").exists()


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--strict",), 1)])
def test_if_npm_fails_the_log_is_named_and_only_strict_is_an_error(course, options, status):
    done = build(course, {"npm": "echo no network; exit 7", "node": "exit 0"}, *options)
    assert done.returncode == status
    assert "npm could not install its packages, see _build/logs/labs.log" in done.stdout
    assert (course / "_build/logs/labs.log").read_text() == "no network\n"
    assert not (course / "_build/labs/package-lock.json").exists()  # the next make tries again


def test_packages_are_pinned_by_hash_and_name_no_host():
    lock = (ROOT / "book/_labs/package-lock.json").read_text()
    assert "http" not in "".join(line for line in lock.splitlines() if '"url"' not in line)
    packages = lock.count('"node_modules/')
    assert packages > 10 and lock.count('"integrity": "sha512-') == packages
    assert os.access(ROOT / "tools/build-labs", os.X_OK)
