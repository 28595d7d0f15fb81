"""`course doctor` on complete machines, and on machines that lack something."""

import builtins
import json
import shutil
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from course_pkg import doctor
from course_pkg.cli import app
from course_pkg.doctor import Finding, check_disk, check_memory, check_python, fit
from course_pkg.lm import smollm2
from course_pkg.lm.model_errors import MissingPackageError
from course_pkg.sandbox.probe import SandboxState


def without_module(monkeypatch, missing):
    real_import = builtins.__import__

    def fake_import(name, *arguments, **options):
        if name == missing:
            raise ModuleNotFoundError(f"No module named '{missing}'")
        return real_import(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, missing, raising=False)
    monkeypatch.setattr(builtins, "__import__", fake_import)


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 10, 9), "missing"), ((3, 11, 0), "ok"), ((3, 13, 4), "ok"), ((3, 14, 0), "missing")],
)
def test_python_must_have_a_supported_version(version, state):
    finding = check_python(version)
    assert finding.state == state
    assert bool(finding.fix) == (state == "missing")


def test_the_finding_for_torch_has_its_version():
    import torch

    finding = doctor.check_torch()
    assert finding.state == "ok" and torch.__version__ in finding.found


def test_without_torch_the_machine_is_unfit(monkeypatch):
    without_module(monkeypatch, "torch")
    finding = doctor.check_torch()
    assert finding.state == "missing" and finding.fix and not fit([finding])


def fake_torch(monkeypatch, *, devices=0, cuda=None, total_memory=0):
    gpu = SimpleNamespace(name="NVIDIA Test 9000", total_memory=total_memory)
    fake = SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: devices > 0,
            get_device_properties=lambda index: gpu,
            device_count=lambda: devices,
        ),
        version=SimpleNamespace(cuda=cuda),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)


def test_a_gpu_is_named_with_its_memory(monkeypatch):
    fake_torch(monkeypatch, devices=2, cuda="13.0", total_memory=24_000_000_000)
    assert doctor.check_gpu().found == "NVIDIA Test 9000, 24 GB, and 1 more"


def test_no_gpu_is_ok_and_the_finding_explains_it(monkeypatch):
    fake_torch(monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda program: None)
    finding = doctor.check_gpu()
    assert finding.state == "ok" and "CPU" in finding.found


def test_a_gpu_that_torch_cannot_use_is_a_warning(monkeypatch):
    fake_torch(monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    finding = doctor.check_gpu()
    assert finding.state == "warning" and "CUDA build" in finding.fix


@pytest.mark.parametrize(("cuda", "state"), [(True, "warning"), (False, "ok")])
def test_missing_flash_attention_is_a_warning_only_with_cuda(monkeypatch, cuda, state):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert doctor.check_flash_attention(cuda).state == state


def test_bubblewrap_follows_the_probe(monkeypatch):
    monkeypatch.setattr(doctor.sandbox, "probe", lambda: SandboxState(False, "none", "get it"))
    finding = doctor.check_bubblewrap()
    assert finding == Finding("bubblewrap", "missing", "none", "get it")
    assert fit([finding])  # reading needs no sandbox


def absent_package():
    raise MissingPackageError("the package is not installed: run pip")


def test_a_missing_cache_is_a_warning_if_the_package_is_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_gguf", lambda: Path("there.gguf"))
    finding = doctor.check_model()
    assert finding.state == "warning" and "absent" in finding.found
    assert "course model" in finding.fix and fit([finding])


def test_no_cache_and_no_package_make_the_machine_unfit(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_gguf", absent_package)
    finding = doctor.check_model()
    assert finding.state == "missing" and "run pip" in finding.fix and not fit([finding])


def test_a_damaged_cache_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    (tmp_path / smollm2.NAME).mkdir()
    monkeypatch.setattr(smollm2, "find_gguf", lambda: Path("there.gguf"))
    finding = doctor.check_model()
    assert finding.state == "warning" and "damaged" in finding.found


def test_little_memory_is_a_warning():
    finding = check_memory(total=4_000_000_000, available=1_500_000_000)
    assert finding.state == "warning" and "1.5 GB" in finding.found and finding.fix


def test_memory_is_read_from_this_machine():
    assert "GB free of" in check_memory().found


@pytest.mark.parametrize(("free", "state"), [(999, "missing"), (1000, "ok")])
def test_too_little_free_disk_space_is_reported(monkeypatch, tmp_path, free, state):
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    finding = check_disk("disk", tmp_path / "not" / "there" / "yet", 1000)
    assert finding.state == state


def test_no_browser_is_a_warning(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    finding = doctor.check_browser()
    assert finding.state == "warning" and "chromium" in finding.fix


def test_packages_that_differ_from_the_lock_are_named(tmp_path):
    lines = ["pytest==0.1", "not-there==1", "also-not-there==1", "nor-this==1"]
    (tmp_path / "requirements.txt").write_text("\n".join(lines))
    finding = doctor.check_lock(tmp_path / "requirements.txt")
    assert finding.state == "warning"
    assert "expected 0.1" in finding.found and "and 1 more" in finding.found
    assert "requirements.txt" in finding.fix


def test_packages_that_match_the_lock_are_ok(tmp_path):
    (tmp_path / "requirements.txt").write_text(f"pytest=={metadata.version('pytest')}\n")
    assert doctor.check_lock(tmp_path / "requirements.txt").state == "ok"


def test_the_lock_is_a_warning_outside_the_repository(tmp_path):
    assert doctor.check_lock(tmp_path / "requirements.txt").state == "warning"


def test_a_check_that_fails_becomes_a_finding(monkeypatch, tmp_path):
    def broken():
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(doctor, "check_browser", broken)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    findings = {finding.name: finding for finding in doctor.diagnose(tmp_path)}
    assert findings["Chromium"].state == "missing" and "a bug" in findings["Chromium"].found


def test_every_finding_that_is_not_ok_has_a_fix(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    findings = doctor.diagnose(tmp_path)
    assert len({finding.name for finding in findings}) == len(findings) == 11
    for finding in findings:
        assert finding.state == "ok" or finding.fix, finding


GOOD = Finding("Python", "ok", "3.11.7", essential=True)
BAD = Finding("torch", "missing", "cannot be imported", "install it", essential=True)
POOR = Finding("bubblewrap", "missing", "not installed", "install it")


@pytest.mark.parametrize(("findings", "code"), [([GOOD, POOR], 0), ([GOOD, BAD], 1)])
def test_the_exit_code_says_whether_the_essentials_are_present(monkeypatch, findings, code):
    monkeypatch.setattr(doctor, "diagnose", lambda: findings)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code
    lines = result.output.splitlines()
    assert lines[0] == "ok\tPython\t3.11.7"
    assert lines[1].startswith("missing\t") and lines[1].endswith("\tfix: install it")


def test_json_contains_every_finding(monkeypatch):
    monkeypatch.setattr(doctor, "diagnose", lambda: [GOOD, BAD])
    result = CliRunner().invoke(app, ["doctor", "--json"])
    data = json.loads(result.stdout)
    assert data["fit"] is False and result.exit_code == 1
    assert data["findings"][1]["fix"] == "install it"


def test_course_model_prints_one_line_for_an_error():
    result = CliRunner().invoke(app, ["model", "smolm2-135m"])
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.startswith("error: there is no model") and result.stderr.count("\n") == 1


def test_course_model_has_nothing_to_prepare_for_tiny():
    result = CliRunner().invoke(app, ["model", "tiny"])
    assert result.exit_code == 0 and "nothing to prepare" in result.stdout


def test_importing_the_package_and_the_command_loads_nothing_heavy():
    import subprocess

    program = (
        "import sys, course_pkg, course_pkg.cli, course_pkg.doctor, course_pkg.datasets, "
        "course_pkg.sandbox.probe; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert loaded.stdout.strip() == "[]", loaded.stderr
