"""The program behind `make test`: which tests run, what gets a second try, how the run ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tools" / "run_tests.py"

# A test that fails in its first run leaves a file, and passes where it finds that.
FLAKY = """
import os, signal, pytest
from pathlib import Path

def first(name):
    seen = Path(__file__).with_name(name)
    if seen.exists():
        return False
    seen.touch()
    return True
"""
FILES = {
    "test_good.py": "def test_good(): pass",
    "test_value.py": """
def test_value():
    print("a print")
    assert not first("value")
""",
    "test_fixture.py": """
@pytest.fixture(scope="module")
def service():
    if first("fixture"):
        raise OSError("the port is taken")

def test_fixture(service): pass
""",
    "test_worker.py": """
def test_worker():
    if first("worker"):
        os.kill(os.getpid(), signal.SIGKILL)

def test_after_it(): pass
""",
    "test_hangs.py": """
@pytest.mark.timeout(1)
def test_hangs():
    hangs = first("hangs")
    while hangs:
        pass
""",
    "test_broken.py": "def test_broken(): assert 1 == 2",
    "test_kills.py": """
def test_kills(): os.kill(os.getpid(), signal.SIGKILL)

def test_after_it(): pass
""",
    "test_unreadable.py": "import no_such_module",
    "test_six.py": """
@pytest.mark.parametrize("number", range(6))
def test_six(number): assert not first(f"six-{number}")
""",
}


@pytest.fixture
def run(tmp_path):
    """Run some of FILES in a folder of their own: the exit code and what was printed."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")

    def start(*names: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
        for name in names:
            (tmp_path / name).write_text(FLAKY + FILES[name])
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, str(PROGRAM), *options, *names],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    return start


def listed(said: str) -> list[str]:
    """The tests that passed at the second try, as the run's last lines list them."""
    _, _, end = said.partition("these at the second try")
    return [line.strip() for line in end.splitlines()[1:]]


def test_what_passes_at_the_second_try_is_listed_and_both_outputs_are_kept(run, tmp_path):
    """A value, a fixture, a test beyond its time, and one that takes its process with it."""
    code, said = run(
        "test_good.py", "test_value.py", "test_fixture.py", "test_hangs.py", "test_worker.py"
    )
    assert code == 0, said
    flaky = ("fixture", "hangs", "value", "worker")
    assert listed(said) == [f"test_{name}.py::test_{name}" for name in flaky]
    log = (tmp_path / "_build/logs/second-tries.log").read_text()
    assert log.count("passed at the second try: ") == log.count("second try\npassed") == 4
    for reason in ("the port is taken", "a print", "Timeout", "crashed while running"):
        assert reason in log


@pytest.mark.parametrize(("name", "options"), [("broken", ("-n", "0")), ("kills", ())])
def test_what_fails_twice_fails_the_run(run, tmp_path, name, options):
    code, said = run("test_value.py", f"test_{name}.py", options=options)
    assert code == 1 and listed(said) == []
    assert f"failed twice: test_{name}.py::test_{name}" in said
    log = (tmp_path / "_build/logs/second-tries.log").read_text()
    assert f"failed: test_{name}.py::test_{name}\n---- the first try\n" in log


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (["test_six.py"], ()),
        (["test_value.py", "test_good.py"], ("-x",)),
        (["test_unreadable.py", "test_value.py"], ()),
        (["test_good.py"], ("--no-such-option",)),
    ],
    ids=["more than five", "stopped early", "not collected", "not understood"],
)
def test_other_failures_get_no_second_try(run, names, options):
    code, said = run(*names, options=("-n", "0", *options))
    assert code != 0 and "A second try" not in said
