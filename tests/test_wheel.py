"""The wheel: it works without the repository, and with only what it declares."""

import importlib.metadata as metadata
import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.repository import PROJECT, ROOT, installed, required, tracked

EXTRAS = PROJECT["optional-dependencies"]
# Folders and modules that need an extra. Everything else works after `pip install course-pkg`.
NEEDS = {
    "course_pkg.adapters.peft_bottleneck": ["parity"],
    "course_pkg.grading.classroom": ["grade"],
    "course_pkg.grading.classroom.cluster": ["cluster", "grade"],
    "course_pkg.deployment": ["serve"],
    "course_pkg.deployment.export": ["onnx"],
    "course_pkg.grading.cell_client": ["grade"],
    "course_pkg.grading.own_notebook": ["grade"],
    "course_pkg.studies.overview": ["book"],
}
IMPORT_ALL = """
import importlib, json, pkgutil, sys
import course_pkg
failed = {}
for module in pkgutil.walk_packages(course_pkg.__path__, "course_pkg."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        failed[module.name] = error.name
print(json.dumps([course_pkg.__file__, failed]))
"""


def packaged() -> set[str]:
    """The package's files in the repository."""
    names = {path.relative_to(ROOT).as_posix() for path in tracked()}
    return {name for name in names if name.startswith("course_pkg/")}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of the tracked files."""
    source = tmp_path_factory.mktemp("source")
    for name in sorted(packaged() | {"pyproject.toml", "README.md", "LICENSE"}):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    options = ["--no-build-isolation", "--no-deps", "--quiet", "--wheel-dir", source / "dist"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True)
    [made] = (source / "dist").iterdir()
    return made


def environment(folder: Path, wheel: Path) -> Path:
    """The Python of a new environment: the wheel, and links to what it declares, nothing else."""
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    for name in required(PROJECT["dependencies"]) & installed().keys():
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()}:
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(Path(distribution.locate_file(top)).resolve())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def plain(wheel, tmp_path_factory) -> Path:
    """The Python of an environment without any extra."""
    return environment(tmp_path_factory.mktemp("plain"), wheel)


def run(python: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess:
    """What a program prints that runs in a folder outside the repository."""
    return subprocess.run(
        [python, "-I", *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == packaged()


def test_only_the_modules_of_an_extra_need_its_libraries(plain, tmp_path):
    done = run(plain, "-c", IMPORT_ALL, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    file, failed = json.loads(done.stdout.splitlines()[-1])
    assert str(plain.parent.parent) in file, "the repository was imported"
    owners = {
        module: max((name for name in NEEDS if f"{module}.".startswith(f"{name}.")), default="")
        for module in failed
    }
    assert set(owners.values()) == NEEDS.keys(), "other modules than these need an extra"
    distributions = metadata.packages_distributions()
    for module, library in failed.items():
        lines = [line for extra in NEEDS[owners[module]] for line in EXTRAS[extra]]
        names = set(map(canonicalize_name, distributions[library.partition(".")[0]]))
        assert names & required(lines), (module, library)


@pytest.mark.parametrize(
    ("command", "library", "extra"),
    [
        (["serve", "--model", "tiny"], "fastapi", "serve"),
        (["check", "bleu", "bleu.ipynb"], "nbformat", "grade"),
        (["export-grades", "bleu"], "nbformat", "grade"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(plain, tmp_path, command, library, extra):
    done = run(plain, "-m", "course_pkg", *command, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: this command needs {library}, which isn't installed: "
        f'python -m pip install "course-pkg[{extra}]"\n'
    )


def test_a_model_is_evaluated_where_there_is_only_the_wheel(plain, tmp_path):
    line = "-m course_pkg eval --model tiny --task multiple-choice --limit 2 --output run"
    done = run(plain, *line.split(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
