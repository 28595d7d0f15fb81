import json
import shutil
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from course_pkg.cli import app, doctor
from course_pkg.cli.doctor import CheckResult, check_disk, check_memory, check_python, fit
from course_pkg.lm import smollm2
from course_pkg.lm.model_errors import MissingPackageError
from course_pkg.sandbox.probe import SandboxState


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 10, 9), "missing"), ((3, 11, 0), "ok"), ((3, 13, 4), "ok"), ((3, 14, 0), "missing")],
)
def test_python_must_have_a_supported_version(version, state):
    finding = check_python(version)
    assert finding.state == state
    assert bool(finding.fix) == (state == "missing")


def test_the_finding_for_torch_has_its_version():
    finding = doctor.check_torch()
    assert finding.state == "ok" and torch.__version__ in finding.found


def test_without_torch_the_machine_is_unfit(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # its import now fails
    finding = doctor.check_torch()
    assert finding.state == "missing" and finding.fix and not fit([finding])


@pytest.mark.parametrize(
    ("devices", "driver", "state", "says"),
    [
        (2, True, "ok", "NVIDIA Test 9000, 24 GB, and 1 more"),
        (0, False, "ok", "none: everything runs on the CPU"),
        (0, True, "warning", "torch is a CPU build"),
    ],
)
def test_a_gpu_is_named_and_a_warning_if_torch_cannot_use_it(
    monkeypatch, devices, driver, state, says
):
    cuda = SimpleNamespace(
        is_available=lambda: devices > 0,
        device_count=lambda: devices,
        get_device_properties=lambda _: SimpleNamespace(name="NVIDIA Test 9000", total_memory=24e9),
    )
    version = SimpleNamespace(cuda="13.0" if devices else None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=version))
    monkeypatch.setattr(shutil, "which", lambda program: program if driver else None)
    finding = doctor.check_gpu()
    assert finding.state == state and says in finding.found
    assert ("CUDA build" in finding.fix) == (state == "warning")


@pytest.mark.parametrize(("cuda", "state"), [(True, "warning"), (False, "ok")])
def test_missing_flash_attention_is_a_warning_only_with_cuda(monkeypatch, cuda, state):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert doctor.check_flash_attention(cuda).state == state


def test_bubblewrap_follows_the_probe(monkeypatch):
    monkeypatch.setattr(doctor.sandbox, "probe", lambda: SandboxState(False, "none", "get it"))
    finding = doctor.check_bubblewrap()
    assert finding == CheckResult("bubblewrap", "missing", "none", "get it")
    assert fit([finding])  # reading needs no sandbox


@pytest.mark.parametrize(
    ("cache", "package", "state", "found", "fix"),
    [
        ("absent", True, "warning", "absent", "course model"),
        ("damaged", True, "warning", "damaged", "course model"),
        ("absent", False, "missing", "absent", "run pip"),
    ],
)
def test_without_a_converted_model_the_package_decides(
    monkeypatch, tmp_path, cache, package, state, found, fix
):
    def find_gguf():
        if not package:
            raise MissingPackageError("the package is not installed: run pip")
        return Path("there.gguf")

    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_gguf", find_gguf)
    if cache == "damaged":
        (tmp_path / smollm2.NAME).mkdir()
    finding = doctor.check_model()
    assert finding.state == state and found in finding.found and fix in finding.fix
    assert fit([finding]) is package


def test_little_memory_is_a_warning():
    finding = check_memory(total=4_000_000_000, available=1_500_000_000)
    assert finding.state == "warning" and "1.5 GB" in finding.found and finding.fix


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


@pytest.mark.parametrize(
    ("lines", "state", "says"),
    [
        ([f"pytest=={metadata.version('pytest')}"], "ok", ["all 1 pins match"]),
        (["pytest==0.1", "a-==1", "b-==1", "c-==1"], "warning", ["expected 0.1", "and 1 more"]),
        (None, "warning", ["no requirements.txt in"]),
    ],
)
def test_packages_that_differ_from_the_lock_are_named(tmp_path, lines, state, says):
    lock = tmp_path / "requirements.txt"
    if lines:
        lock.write_text("\n".join(lines))
    finding = doctor.check_lock(lock)
    assert finding.state == state and all(part in finding.found for part in says)
    assert bool(finding.fix) == (state == "warning")


def test_every_finding_that_is_not_ok_has_a_fix_and_a_failed_check_is_one(monkeypatch, tmp_path):
    def broken():
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(doctor, "check_browser", broken)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    findings = {finding.name: finding for finding in doctor.diagnose(tmp_path)}
    assert len(findings) == 11
    assert [
        name for name, finding in findings.items() if finding.state != "ok" and not finding.fix
    ] == []
    assert findings["Chromium"].state == "missing" and "a bug" in findings["Chromium"].found
    assert "GB free of" in findings["memory"].found


GOOD = CheckResult("Python", "ok", "3.11.7", essential=True)
BAD = CheckResult("torch", "missing", "cannot be imported", "install it", essential=True)
POOR = CheckResult("bubblewrap", "missing", "not installed", "install it")


@pytest.mark.parametrize(("findings", "code"), [([GOOD, POOR], 0), ([GOOD, BAD], 1)])
def test_the_exit_code_says_whether_the_essentials_are_present(monkeypatch, findings, code):
    monkeypatch.setattr(doctor, "diagnose", lambda: findings)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code
    lines = result.output.splitlines()
    assert lines[0] == "ok\tPython\t3.11.7"
    assert lines[1].startswith("missing\t") and lines[1].endswith("\tfix: install it")
    result = CliRunner().invoke(app, ["doctor", "--json"])
    data = json.loads(result.stdout)
    assert result.exit_code == code and data["fit"] is (code == 0)
    assert data["findings"][1]["fix"] == "install it"


@pytest.mark.parametrize(
    ("model", "code", "says"),
    [("smolm2-135m", 2, "error: there is no model"), ("tiny", 0, "tiny is built in memory")],
)
def test_course_model_prints_one_line(model, code, says):
    result = CliRunner().invoke(app, ["model", model])
    said = result.stderr if code else result.stdout
    assert result.exit_code == code and said.startswith(says)
    assert said == result.output and said.count("\n") == 1
