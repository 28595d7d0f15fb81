"""The package's architecture: short modules, imports only from lower layers, a fast import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from course_pkg.common.fingerprints.reach import all_imports

ROOT = Path(__file__).parent.parent
PACKAGE = "course_pkg"
LONGEST = 350  # lines of code of a module, without comments, docstrings and empty lines
ENGINE = ("acceleration.attention.paged", "serving.block_*", "serving.engine", "serving.lora_rows")
ENGINE += ("serving.model_runner", "serving.request", "serving.sampling", "serving.scheduler")
ENGINE += ("serving.sequence", "serving.text_stream")
ENGINE_CODE = 1500  # lines of code: an engine that can be read in an evening
HEAVY = ("torch", "transformers", "peft", "numpy", "matplotlib", "nbgrader", "typer", "rich")
LAZY = ("adapters", "metrics.bertscore", "metrics.perplexity")

# A module may import from its own folder and from lower layers. If its folder has several layers,
# it may not import from the higher ones.
LAYERS = {
    "common": -2,
    "pages": -1,
    "lm": 0,
    "sandbox": 0,
    "metrics.ngrams": 0,
    "metrics.tokenizers": 0,
    "acceleration.attention": 1,
    "acceleration.parallel": 1,
    "acceleration.quantization": 1,
    "adapters": 2,
    "metrics": 2,
    "serving.constrained": 2,
    "evaluation": 3,
    "finetuning": 3,
    "finetuning.own_data": 3.1,
    "serving": 3,
    "deployment.export": 3.2,
    "deployment": 3.5,
    "studies": 3.8,
    "grading.questions": 4.0,
    "grading": 4.1,
    "pages.labs": 4.15,
    "grading.classroom": 4.2,
    "grading.classroom.execution": 4.3,
    "grading.classroom.gradebook": 4.3,
    "grading.classroom.feedback": 4.4,
    "grading.classroom.cluster": 4.4,
    "grading.classroom.runs": 4.5,
    "cli": 5,
    "__main__": 6,
}


def modules(root: Path) -> dict[str, Path]:
    """The file of every module of the package under `root`, by dotted name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def import_targets(path: Path, package: str) -> tuple[tuple[str, str], ...]:
    """What a file of `package` imports anywhere: modules, and names of them."""
    return tuple(all_imports(ast.parse(path.read_text("utf-8")), package))


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The package's own modules that module `name` imports, anywhere in the file."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for owner, inner in import_targets(path, package):
        # `from a.b import c` imports the module a.b.c if it exists, otherwise a.b.
        found = f"{owner}.{inner}" if f"{owner}.{inner}" in known else owner
        if found.split(".")[0] == PACKAGE:
            yield found


def key(name: str) -> str:
    """The folder or module in LAYERS that a module belongs to: the longest name that fits."""
    inner = name.removeprefix(f"{PACKAGE}.")
    fits = [key for key in LAYERS if inner == key or inner.startswith(f"{key}.")]
    if not fits:
        raise KeyError(f"{name} has no layer: add its folder to LAYERS")
    return max(fits, key=len)


def layer(name: str) -> tuple[str, float]:
    return name.removeprefix(f"{PACKAGE}.").split(".")[0], LAYERS[key(name)]


def upward_imports(root: Path) -> list[str]:
    """Imports from a higher layer, or from another folder in the same layer."""
    known = modules(root)
    found = []
    for name, path in known.items():
        for target in imported(name, path, known):
            if PACKAGE in (name, target):  # the package itself contains only its version
                continue
            (folder, own) = layer(name)
            (other, below) = layer(target)
            if (folder != other and below >= own) or (folder == other and below > own):
                found.append(f"{name} (layer {own}) imports {target} (layer {below})")
    return found


def test_modules_are_short():
    lines = {
        str(path.relative_to(ROOT)): code_lines(path.read_text("utf-8"))
        for path in modules(ROOT).values()
    }
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def code_lines(text: str) -> int:
    """The lines of a module that have code: no comment, docstring or empty line."""
    written = {
        number
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    strings, notes = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            notes |= set(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.Constant | ast.JoinedStr):  # may have empty lines
            strings |= set(range(node.lineno, node.end_lineno + 1))
    return len((written | strings) - notes)


def test_the_engine_is_short():
    files = []
    for name, path in modules(ROOT).items():
        if any(fnmatch(name, f"{PACKAGE}.{part}") for part in ENGINE):
            files.append(path)
    assert len(files) == 11
    assert sum(code_lines(path.read_text("utf-8")) for path in files) <= ENGINE_CODE


def test_imports_go_down():
    assert upward_imports(ROOT) == []


def package(root: Path, sources: dict[str, str]) -> Path:
    for name, source in sources.items():
        path = root / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


def test_an_upward_import_is_detected_in_every_form(tmp_path):
    sources = {
        "lm/load.py": "from ..adapters.lora import x",
        "lm/cache.py": "def f():\n    import course_pkg.grading.check",
        "adapters/lora.py": "from course_pkg.metrics import bleu",
        "metrics/ngrams.py": "from .bleu import score",
        "grading/classroom/gradebook/record.py": "from ..runs import batch",
    }
    found = upward_imports(package(tmp_path, sources))
    assert len(found) == len({line.split()[0] for line in found}) == len(sources)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Names that import each other, first and last the same; [] if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def folder_circle(root: Path) -> list[str]:
    """Folders of LAYERS that import each other, as `circle` gives them."""
    known = modules(root)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        if path.name != "__init__.py":  # which may export what is in its folder
            used = {key(target) for target in imported(name, path, known) if target != PACKAGE}
            graph.setdefault(key(name), set()).update(used - {key(name)})
    return circle(graph)


def test_modules_and_folders_do_not_import_each_other_in_a_circle():
    known = modules(ROOT)
    graph = {name: set(imported(name, path, known)) - {name} for name, path in known.items()}
    assert circle(graph) == []
    assert folder_circle(ROOT) == []


def test_every_module_and_every_public_name_has_a_docstring():
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    undocumented = []
    for name, path in modules(ROOT).items():
        tree = ast.parse(path.read_text("utf-8"))
        if tree.body and not ast.get_docstring(tree):
            undocumented.append(name)
        public = [n for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]
        if name.endswith(".cases"):  # `<question>_expected`: the right value, by the reference
            public = [node for node in public if not node.name.endswith("_expected")]
        undocumented += [f"{name}.{node.name}" for node in public if not ast.get_docstring(node)]
    assert undocumented == []


@pytest.mark.parametrize(
    ("names", "heavy"),
    [
        ([PACKAGE], HEAVY),
        (
            ["cli", "cli.doctor", "pages.datasets", "sandbox.probe", *LAZY],
            ("torch", "transformers"),
        ),
    ],
)
def test_importing_the_package_the_command_and_lazy_folders_loads_nothing_heavy(names, heavy):
    full = [name if name == PACKAGE else f"{PACKAGE}.{name}" for name in names]
    command = f"import sys, {', '.join(full)}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in out.stdout.split()}
    assert PACKAGE in loaded and loaded.isdisjoint(heavy)
