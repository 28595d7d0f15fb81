"""The cache folder: complete or absent, checked, built once, readable by every user."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.lm import cache
from course_pkg.lm.model_errors import CacheAccessError, ModelError, NoSpaceError
from tests.waiting import wait_until

WEIGHTS = bytes(range(256)) * 400


def build(folder: Path) -> None:
    (folder / "weights").write_bytes(WEIGHTS)
    (folder / "weights").chmod(0o600)  # as save_pretrained leaves it
    (folder / "config.json").write_text("{}")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "root" / "model"


@pytest.fixture
def built(folder):
    return cache.ensure(folder, "key", build, 1000)


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def raising(error):
    """A builder that writes the files and then fails."""

    def failing(partial):
        build(partial)
        raise error

    return failing


def never(folder):
    raise AssertionError("a valid cache was built again")


def test_what_is_built_is_valid_and_not_built_again(built):
    assert cache.inspect(built, "key").state == "valid"
    assert cache.ensure(built, "key", never, 1000) == built
    assert (built / "weights").read_bytes() == WEIGHTS


def test_other_users_can_read_the_folder_whatever_the_umask(folder):
    old = os.umask(0o077)
    try:
        cache.ensure(folder, "key", build, 1000)
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}


def truncate(folder):
    os.truncate(folder / "weights", len(WEIGHTS) // 2)


def flip_a_bit(folder):
    content = bytearray((folder / "weights").read_bytes())
    content[777] ^= 0b100
    (folder / "weights").write_bytes(content)


def edit_manifest(folder, **changes):
    manifest = json.loads((folder / cache.MANIFEST).read_text())
    (folder / cache.MANIFEST).write_text(json.dumps(manifest | changes))


DAMAGES = {
    "truncated": truncate,
    "a bit flipped": flip_a_bit,
    "a file deleted": lambda folder: (folder / "config.json").unlink(),
    "a file added": lambda folder: (folder / "adapter_config.json").write_text("{}"),
    "no manifest": lambda folder: (folder / cache.MANIFEST).unlink(),
    "a broken manifest": lambda folder: (folder / cache.MANIFEST).write_text('{"format": 2, "fi'),
    "a list as manifest": lambda folder: (folder / cache.MANIFEST).write_text("[]"),
    "an old format": lambda folder: edit_manifest(folder, format=0),
    "another source": lambda folder: edit_manifest(folder, key="another key"),
}


def test_damage_is_detected_and_repaired(built, subtests):
    for name, damage in DAMAGES.items():
        with subtests.test(name):
            damage(built)
            assert cache.inspect(built, "key").state == "damaged"
            cache.ensure(built, "key", build, 1000)
            assert cache.inspect(built, "key").state == "valid"
            assert (built / "weights").read_bytes() == WEIGHTS
            assert names_in(built.parent) == {"model", ".model.lock"}


def test_a_shallow_check_detects_a_truncated_file_but_not_a_flipped_bit(built):
    flip_a_bit(built)
    assert cache.inspect(built, "key", deep=False).state == "valid"
    truncate(built)
    assert cache.inspect(built, "key", deep=False).state == "damaged"


@settings(max_examples=40)
@given(data=st.data(), size=st.integers(1, 40))
def test_the_digest_changes_with_any_bit_in_any_chunk(tmp_path_factory, data, size):
    path = tmp_path_factory.getbasetemp() / "digest"
    content = bytearray(data.draw(st.binary(min_size=size, max_size=size)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "CHUNK", 8)
        path.write_bytes(content)
        before = cache.digest(path)
        assert cache.digest(path) == before
        content[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        assert cache.digest(path) != before


def test_an_interrupted_build_leaves_no_folder(folder):
    with pytest.raises(KeyboardInterrupt):
        cache.ensure(folder, "key", raising(KeyboardInterrupt), 1000)
    assert cache.inspect(folder, "key").state == "absent"
    assert names_in(folder.parent) == {".model.lock"}


@pytest.mark.parametrize("error", [ModelError("the package is gone"), ZeroDivisionError("a bug")])
def test_a_failed_repair_raises_its_error_and_the_folder_stays_damaged(built, error):
    truncate(built)
    with pytest.raises(type(error), match=f"^{error}$"):
        cache.ensure(built, "key", raising(error), 1000)
    assert cache.inspect(built, "key").state == "damaged"


KILLED = """
import os, signal, sys
from pathlib import Path
from course_pkg.lm.cache import ensure

def build(folder):
    (folder / "weights").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

ensure(Path(sys.argv[1]), "key", build, 1000)
"""


def test_a_killed_process_blocks_no_other_and_its_leftovers_are_deleted(folder):
    dead = subprocess.run([sys.executable, "-c", KILLED, str(folder)], timeout=300)
    assert dead.returncode < 0
    assert list(folder.parent.glob(".model.partial-*"))
    cache.ensure(folder, "key", build, 1000)
    assert names_in(folder.parent) == {"model", ".model.lock"}


RACER = """
import sys, time
from pathlib import Path
from course_pkg.lm.cache import ensure

folder, log, others_wait = map(Path, sys.argv[1:])

def build(partial):
    with log.open("a") as file:
        file.write("built\\n")
    while not others_wait.exists():
        time.sleep(0.01)
    (partial / "weights").write_bytes(b"w" * 1000)

ensure(folder, "key", build, 1000)
print((folder / "weights").stat().st_size)
"""


def test_concurrent_processes_build_once_and_all_get_the_complete_folder(folder, tmp_path):
    log = tmp_path / "log"
    others_wait = tmp_path / "others wait"
    said = [tmp_path / f"stderr {number}" for number in range(4)]
    racers = []
    for path in said:
        command = [sys.executable, "-c", RACER, str(folder), str(log), str(others_wait)]
        with path.open("w") as stderr:
            racers.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
            )
    try:
        wait_until(lambda: sum("waiting" in path.read_text() for path in said) == 3, seconds=300)
    finally:
        others_wait.touch()
        outputs = [racer.communicate()[0].strip() for racer in racers]
    assert outputs == ["1000"] * 4
    assert log.read_text() == "built\n"


def test_a_small_disk_and_a_root_that_is_a_file_are_reported(folder, monkeypatch, tmp_path):
    usage = shutil.disk_usage(folder.parent.parent)._replace(free=5_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(NoSpaceError, match=r"5 MB free .* needs 600 MB.*COURSE_CACHE") as raised:
        cache.ensure(folder, "key", never, 600_000_000)
    assert "\n" not in str(raised.value)
    (tmp_path / "file").write_text("a file")
    with pytest.raises(CacheAccessError, match="COURSE_CACHE"):
        cache.ensure(tmp_path / "file" / "model", "key", build, 1000)


FULL = """
import resource, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from course_pkg.lm.cache import ensure
from course_pkg.lm.model_errors import NoSpaceError

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    weights = {"weights": torch.zeros(100_000)}
    ensure(Path(sys.argv[1]), "key", lambda to: save_file(weights, to / "model.safetensors"), 1000)
except NoSpaceError as error:
    print(error)
"""


def test_a_disk_that_fills_up_midway_gives_a_one_line_error_and_leaves_no_folder(folder):
    command = [sys.executable, "-c", FULL, str(folder)]
    full = subprocess.run(command, capture_output=True, text=True, timeout=300)
    [line] = full.stdout.splitlines()
    assert "filled up" in line and "COURSE_CACHE" in line
    assert names_in(folder.parent) == {".model.lock"}


def test_an_error_of_the_system_is_explained(folder, subtests):
    for code, error, says in (
        (errno.ENOSPC, NoSpaceError, "filled up"),
        (errno.EDQUOT, NoSpaceError, "filled up"),
        (errno.EACCES, CacheAccessError, "cannot be written"),
    ):
        words = os.strerror(code)
        with subtests.test(words), pytest.raises(error, match=rf"{says}.*{words}"):
            cache.ensure(folder, "key", raising(OSError(code, words)), 1000)


def test_the_root_follows_the_environment(monkeypatch, subtests):
    for variables, platform, expected in (
        ({"COURSE_CACHE": "/srv/models"}, "linux", "/srv/models"),
        ({"XDG_CACHE_HOME": "/x"}, "linux", "/x/llm-course"),
        ({}, "linux", "/home/ada/.cache/llm-course"),
        ({}, "darwin", "/home/ada/Library/Caches/llm-course"),
    ):
        with subtests.test(variables=variables, platform=platform):
            for name in ("COURSE_CACHE", "XDG_CACHE_HOME"):
                monkeypatch.delenv(name, raising=False)
            for name, value in ({"HOME": "/home/ada"} | variables).items():
                monkeypatch.setenv(name, value)
            monkeypatch.setattr(sys, "platform", platform)
            assert cache.cache_root() == Path(expected)
