"""The architecture that the package promises: small modules, arrows one way, instant import.

Every rule is a function from a folder of sources to a list of complaints, so that it can be
pointed at planted bad sources too: a rule that can't fail protects nothing.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "course_pkg"
LONGEST = 250  # lines of a module
SLOWEST = 0.2  # seconds that `import course_pkg` may take
HEAVY = ("torch", "transformers", "peft", "numpy", "matplotlib", "nbgrader", "typer", "rich")

# Who may import whom: a module imports from its own folder and from lower layers; where a folder
# has layers of its own, not from a higher one of those either.
LAYERS = {
    "lm": 0,
    "sandbox": 0,
    "files": -1,  # even the ground may use it
    "pins": 0,
    "metrics.ngrams": 0,
    "metrics.texts": 0,
    "adapters": 1,
    "acceleration": 1,
    "metrics": 1,
    "finetuning": 2,
    "serving": 2,
    "deployment": 2,
    "evaluation": 2,
    "grading.contract": 3.0,
    "grading.asking": 3.0,
    "grading.checks": 3.1,
    "grading.check": 3.1,
    "grading.checker": 3.1,
    "grading.results": 3.2,
    "grading.submissions": 3.2,
    "grading.feedback": 3.3,
    "grading.gradebook": 3.4,
    "grading.runs": 3.5,
    "grading": 3.0,
    "doctor": 3,
    "cli": 4,
    "__main__": 5,
}
TOP_LEVEL = {"files", "pins", "doctor", "cli", "__main__"}  # modules outside every folder
FOLDERS = {name for name in LAYERS if "." not in name} - TOP_LEVEL
BOOK_ONLY = {"api", "appendix", "experiments"}  # folders of book/ alone


def modules(root: Path) -> dict[str, Path]:
    """The file of every module of the package under `root`, by dotted name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The package's own modules that module `name` imports, wherever in the file it does."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join((above if node.level else []) + ([node.module] if node.module else []))
            # `from a.b import c` imports the module a.b.c if there is one, else a.b.
            inner = [f"{base}.{alias.name}" for alias in node.names]
            targets = [full if full in known else base for full in inner]
        else:
            continue
        yield from (target for target in targets if target.split(".")[0] == PACKAGE)


def layer(name: str) -> tuple[str, int]:
    """The folder that a module belongs to, and its layer; the longest matching name counts."""
    inner = name.removeprefix(f"{PACKAGE}.")
    fits = [key for key in LAYERS if inner == key or inner.startswith(f"{key}.")]
    if not fits:
        raise KeyError(f"{name}: no layer is given for it; add its folder to LAYERS")
    return inner.split(".")[0], LAYERS[max(fits, key=len)]


def too_long(root: Path) -> list[str]:
    """Modules of more lines than one sitting takes."""
    counts = {path: len(path.read_text("utf-8").splitlines()) for path in modules(root).values()}
    return [
        f"{path.relative_to(root)}: {lines} lines, at most {LONGEST}"
        for path, lines in counts.items()
        if lines > LONGEST
    ]


def upward_imports(root: Path) -> list[str]:
    """Imports that do not go down: into a higher layer, or into another folder of the same."""
    known, complaints = modules(root), []
    for name, path in known.items():
        for target in imported(name, path, known):
            if PACKAGE in (name, target):  # the package itself holds nothing but its version
                continue
            (folder, own), (other, below) = layer(name), layer(target)
            if folder != other and below >= own:
                complaints.append(f"{name} (layer {own}) imports {target} (layer {below})")
            elif folder == other and below > own:
                complaints.append(f"{name} (layer {own}) imports {target} above it (layer {below})")
    return complaints


def circles(root: Path) -> list[str]:
    """Modules that import each other round in a circle."""
    known = modules(root)
    graph = {name: set(imported(name, path, known)) - {name} for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def undocumented(root: Path) -> list[str]:
    """Modules, and public functions and classes of modules, without a docstring."""
    complaints = []
    for name, path in modules(root).items():
        tree = ast.parse(path.read_text("utf-8"))
        if tree.body and not ast.get_docstring(tree):
            complaints.append(f"{name} has no docstring")
        for node in tree.body:
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and not node.name.startswith("_")
                and not ast.get_docstring(node)
            ):
                complaints.append(f"{name}.{node.name} has no docstring")
    return complaints


def strange_folders(root: Path) -> list[str]:
    """Folders of the book and the package that have no namesake in the plan of both."""
    complaints = []
    for base, allowed in ((PACKAGE, FOLDERS | {"data"}), ("book", FOLDERS | BOOK_ONLY)):
        for path in sorted((root / base).iterdir()):
            if path.is_dir() and not path.name.startswith(("_", ".")) and path.name not in allowed:
                complaints.append(f"{base}/{path.name}: not among {sorted(allowed)}")
    return complaints


def strange_chapters(root: Path) -> list[str]:
    """`Chapter: folder/page` in a docstring, where the book's plan has no such folder."""
    complaints = []
    for name, path in modules(root).items():
        for chapter in re.findall(r"Chapter:\s+([\w-]+)/[\w-]+", path.read_text("utf-8")):
            if chapter not in FOLDERS | BOOK_ONLY:
                complaints.append(f"{name} names the chapter {chapter}/, which is not in the plan")
    return complaints


def plant(root: Path, **files: str) -> Path:
    """A package under `root` with these files: `lm__load` stands for course_pkg/lm/load.py."""
    (root / "book").mkdir()
    for name, text in {"__init__": '"""Package."""\n', **files}.items():
        path = root / PACKAGE / (name if name == "__init__" else name.replace("__", "/"))
        path = path.with_name(f"{path.name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


RULES = [too_long, upward_imports, circles, undocumented, strange_folders, strange_chapters]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule):
    assert len(modules(ROOT)) > 10  # that it looks at anything
    assert rule(ROOT) == []


def test_no_rule_complains_of_a_good_package(tmp_path):
    root = plant(
        tmp_path,
        lm__load='"""M."""\n\n\ndef load():\n    """Load. Chapter: adapters/lora."""\n',
        adapters__lora='"""M."""\nfrom ..lm.load import load\nfrom course_pkg import lm\n',
        metrics__ngrams='"""M."""\n',
        adapters__counts='"""M."""\nfrom course_pkg.metrics.ngrams import x\nfrom . import lora\n',
        cli='"""M."""\nimport course_pkg.adapters.lora\n\n\ndef _private():\n    return 1\n',
    )
    (root / "book" / "adapters").mkdir()
    assert [rule(root) for rule in RULES] == [[]] * len(RULES)


PLANTED = {
    "one line over the limit": (too_long, {"lm__load": "x = 1\n" * (LONGEST + 1)}),
    "an import upwards": (
        upward_imports,
        {"lm__load": "from course_pkg.adapters import lora\n", "adapters__lora": ""},
    ),
    "an import upwards, relative": (
        upward_imports,
        {"lm__load": "from ..adapters.lora import x\n", "adapters__lora": ""},
    ),
    "an import upwards, inside a function": (
        upward_imports,
        {"finetuning__sft": "def f():\n    import course_pkg.grading.check\n"},
    ),
    "an import sideways": (
        upward_imports,
        {"adapters__lora": "from course_pkg.acceleration import int8\n", "acceleration__int8": ""},
    ),
    "the ground importing what stands on it": (
        upward_imports,
        {"metrics__ngrams": "from course_pkg.metrics import bleu\n", "metrics__bleu": ""},
    ),
    "a layer within a folder importing the one above": (
        upward_imports,
        {"grading__results__a": "from ..runs import b\n", "grading__runs__b": ""},
    ),
    "the command line imported from below": (
        upward_imports,
        {"grading__grader": "from course_pkg import cli\n", "cli": ""},
    ),
    "a circle of two": (
        circles,
        {"lm__a": "from course_pkg.lm import b\n", "lm__b": "from .a import x\n"},
    ),
    "a circle of three": (
        circles,
        {"lm__a": "from .b import x", "lm__b": "from .c import x", "lm__c": "from .a import x"},
    ),
    "a function without docstring": (
        undocumented,
        {"lm__load": '"""M."""\n\n\ndef load():\n    return 1\n'},
    ),
    "a class without docstring": (
        undocumented,
        {"lm__load": '"""M."""\n\n\nclass A:\n    x = 1\n'},
    ),
    "a module without docstring": (undocumented, {"lm__load": "x = 1\n"}),
    "a folder outside the plan": (strange_folders, {"utils__helpers": ""}),
    "a chapter outside the plan": (strange_chapters, {"lm__load": '"""Chapter: peft/lora."""\n'}),
}


@pytest.mark.parametrize("case", PLANTED)
def test_the_rule_catches(case, tmp_path):
    rule, files = PLANTED[case]
    assert len(rule(plant(tmp_path, **files))) == 1


def test_a_strange_folder_of_the_book_is_caught(tmp_path):
    root = plant(tmp_path)
    (root / "book" / "lora").mkdir()
    assert strange_folders(root) == [f"book/lora: not among {sorted(FOLDERS | BOOK_ONLY)}"]


def test_a_module_outside_every_layer_is_an_error(tmp_path):
    files = {"adapters__lora": "from course_pkg.utils import helpers\n", "utils__helpers": ""}
    with pytest.raises(KeyError, match="add its folder to LAYERS"):
        upward_imports(plant(tmp_path, **files))


MEASURE = """
import sys, time
before, start = set(sys.modules), time.perf_counter()
import {package}
print(time.perf_counter() - start, *(set(sys.modules) - before))
"""


def import_cost(package: str, folder: Path) -> tuple[float, set[str]]:
    """Seconds that importing takes in a fresh interpreter (best of three), and what it loads."""
    seconds, loaded = [], set()
    for _ in range(3):
        command = [sys.executable, "-c", MEASURE.format(package=package)]
        out = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        took, *names = out.stdout.split()
        seconds.append(float(took))
        loaded = {name.split(".")[0] for name in names}
    return min(seconds), loaded


def test_importing_the_package_is_instant_and_loads_nothing_heavy():
    seconds, loaded = import_cost(PACKAGE, ROOT)
    assert PACKAGE in loaded
    assert loaded.isdisjoint(HEAVY)
    assert seconds < SLOWEST


def test_a_heavy_or_slow_import_would_be_noticed(tmp_path):
    (tmp_path / "sluggish.py").write_text(f"import time, numpy\ntime.sleep({SLOWEST})\n")
    seconds, loaded = import_cost("sluggish", tmp_path)
    assert "numpy" in loaded
    assert seconds > SLOWEST
