"""The repository's files, and the packages that its distributions require."""

import ast
import importlib.metadata as metadata
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from course_pkg.common.fingerprints.reach import all_imports

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OWN = canonicalize_name(PROJECT["name"])


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    """Whether a requirement's marker is true in the environment, without extras."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""} | environment)


def dependencies(roots: Iterable[str], environment: dict[str, str]) -> set[str]:
    """Names of the direct and indirect dependencies of the installed packages `roots`."""
    seen = set()
    todo = list(roots)
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


def required(lines: Iterable[str]) -> set[str]:
    """The packages that the lines require, with those that these require.

    A line may name extras of the course's own package.
    """
    names: set[str] = set()
    todo = list(map(Requirement, lines))
    while todo:
        line = todo.pop()
        if canonicalize_name(line.name) == OWN:
            own = (
                each for extra in line.extras for each in PROJECT["optional-dependencies"][extra]
            )
            todo += map(Requirement, own)
        else:
            names.add(canonicalize_name(line.name))
    return names | dependencies(names, default_environment())


@cache
def _homes() -> Mapping[str, list[str]]:
    """The distributions of each module at the top."""
    return metadata.packages_distributions()


def imported(source: str) -> dict[str, set[str]]:
    """The packages that a program imports, without the course's own: distributions by module."""
    found = {}
    tops = {module.split(".")[0] for module, _ in all_imports(ast.parse(source))}
    for top in tops:
        if owners := {canonicalize_name(owner) for owner in _homes().get(top, ())} - {OWN}:
            found[top] = owners
    return found


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
