"""What code can run: names are followed to definitions, and what nobody uses is not reached."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from course_pkg.common.fingerprints.reach import LOADED, WHOLE, Sources
from tests.repository import ROOT

PROJECT = """=== course_pkg/__init__.py
__version__ = '1'
=== course_pkg/tools.py
import math

def used():
    return math.pi


def unused():
    return 2
=== course_pkg/many/__init__.py
import lazy_loader
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
=== course_pkg/many/__init__.pyi
from .one import One as One, first as first
from .two import Two as Two
=== course_pkg/many/one.py
from course_pkg.tools import used

class One:
    size = used()


first = One()
=== course_pkg/many/two.py
from . import one
from .one import first as start

def Two():
    return one.One, start
=== course_pkg/effect.py
import course_pkg.table
course_pkg.table.ROWS.append(1)
print('loaded')
=== course_pkg/table.py
ROWS = []
ROWS += [2]
OTHER = 3

@ROWS.register()
def row(): ...
=== course_pkg/server.py
RUN = 'course_pkg.tools:used'

def start():
    return RUN
=== course_pkg/star.py
from course_pkg.tools import *
=== course_pkg/main.py
def run():
    from course_pkg.tools import unused
    return unused()

if __name__ == '__main__':
    run()
=== scripts/a.py
from b import VALUE
from left_out import OTHER
VALUE
=== scripts/b.py
import course_pkg.tools as tools
VALUE = tools.used()
NONE = tools.unused()
=== scripts/left_out.py
OTHER = 1
"""
FILES = dict(part.split("\n", 1) for part in PROJECT.split("=== ")[1:])
USED = {"course_pkg.tools": {"used"}}
BOTH = {"course_pkg.tools": {"used", "unused"}}
SERVER = {"course_pkg.server": {"RUN", "start"}}


@pytest.fixture
def sources(tmp_path) -> Sources:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Sources(tmp_path, tmp_path / "scripts", leave_out=("left_out",))


def reached(sources: Sources, code: str) -> dict[str, set[str]]:
    """For each module, the beginnings of the statements that code can run."""
    page = sources.parsed(code, "page", Path("page.md"))
    found = sources.reach(page).modules
    texts = {}
    for name in found.keys() - {"page"}:
        units = [sources.module(name).units[number].node for number in found[name]]
        if units:
            texts[name] = {beginning(unit) for unit in units}
    return texts


def beginning(node: ast.stmt) -> str:
    """The name that a statement defines, or its first word."""
    return getattr(node, "name", None) or ast.unparse(node).split(" ")[0]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch", {}),
        ("import course_pkg.tools", {}),
        ("from course_pkg.tools import used", {}),  # imported, and not used
        ("from course_pkg.tools import used\nused()", USED),
        ("import course_pkg.tools\ncourse_pkg.tools.used()", USED),
        ("from course_pkg import tools as t\nt.used()", USED),
        ("from course_pkg import tools\nf(tools)", BOTH),
        ("from course_pkg import tools\ngetattr(tools, x)", BOTH),
        ("def f():\n    from course_pkg.tools import used\n    used()", USED),
        ("from course_pkg.many import One\nOne", USED | {"course_pkg.many.one": {"One"}}),
        (
            "from course_pkg.many import Two\nTwo()",
            USED | {"course_pkg.many.two": {"Two"}, "course_pkg.many.one": {"One", "first"}},
        ),
        ("from course_pkg.star import used\nused()", USED),
        (
            "import course_pkg.effect",
            {
                "course_pkg.effect": {"course_pkg.table.ROWS.append(1)", "print('loaded')"},
                "course_pkg.table": {"ROWS", "row"},
            },
        ),
        ("from course_pkg.table import OTHER\nOTHER", {"course_pkg.table": {"OTHER"}}),
        ("import course_pkg.server as a\na.start()", BOTH | SERVER),
        ("import course_pkg.main", {}),
        (
            "from course_pkg.main import run\nrun()",
            {"course_pkg.main": {"run"}, "course_pkg.tools": {"unused"}},
        ),
        ("import a", USED | {"a": {"VALUE"}, "b": {"VALUE"}}),
        ("def broken(", {}),
    ],
)
def test_names_are_followed_to_their_definitions(sources, code, expected):
    assert reached(sources, code) == expected


def test_a_hash_is_of_what_was_reached_alone(sources):
    def hashes() -> dict[str, str]:
        fresh = Sources(sources.root)
        return fresh.hashes(fresh.reach(("course_pkg.many.one", WHOLE)))

    before = hashes()
    assert list(before) == ["course_pkg/many/one.py", "course_pkg/tools.py"]
    tools = sources.root / "course_pkg/tools.py"
    tools.write_text(FILES["course_pkg/tools.py"].replace("return 2", "return 3"))
    assert hashes() == before
    tools.write_text(FILES["course_pkg/tools.py"].replace("math.pi", "math.e"))
    assert hashes()["course_pkg/tools.py"] != before["course_pkg/tools.py"]
    assert hashes()["course_pkg/many/one.py"] == before["course_pkg/many/one.py"]


def test_every_module_that_a_running_program_loads_is_reached():
    """By parsing alone: imports in functions, lazy ones, and those of folders."""
    code = (
        "from course_pkg.adapters import LoRAConfig, inject\nfrom course_pkg.metrics import bleu\n"
    )
    code += "from course_pkg.lm.load import load\nmodel, _ = load('tiny')\n"
    code += "inject(model, LoRAConfig(rank=2, alpha=4))\nbleu.corpus_bleu(['a'], [['a']])\n"
    show = "import sys\nprint(*(n for n in sys.modules if n.startswith('course_pkg')))"
    command = [sys.executable, "-c", code + show]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    sources = Sources(ROOT)
    found = sources.reach(sources.parsed(code, "page", Path("page.md")), ("course_pkg", LOADED))
    assert set(done.stdout.split()) - found.modules.keys() == set()
