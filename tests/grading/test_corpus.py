"""The corpora: what attacks refer to exists, and stock nbgrader's results are up to date."""

import importlib
import importlib.util
import re

import pytest

from course_pkg.sandbox.probe import probe
from tests.exercises.assignments import ROOT

from .corpus import Case, load
from .stock import Stock, read

ATTACKS = {case.name: case for case in load("attacks")}
RERUN = ("patched-check", "memoized-public-answers", "duplicated-tests")
IMPORTED = re.compile(r"from (course_pkg[\w.]*) import ([\w, ]+)")
MODULE = re.compile(r"\bcourse_pkg(?:\.[a-z]\w*)+")
FILE = re.compile(r"\b(?:adapters|grading)/[\w/]+\.(?:py|toml)\b")


def code(case: Case) -> str:
    """The code of a submission's cells."""
    return "\n".join([case.before, case.after, case.everywhere, *case.answers.values()])


def missing(text: str) -> list[str]:
    """The modules, names and files of course_pkg that code refers to, but do not exist."""
    modules = {name for name in MODULE.findall(text) if not _is_module(name)}
    names = {
        f"{module}.{name}"
        for module, imported in IMPORTED.findall(text)
        for name in re.findall(r"(\w+)(?: as \w+)?", imported)
        if _is_module(module) and not _has(module, name)
    }
    files = {path for path in FILE.findall(text) if not (ROOT / "course_pkg" / path).is_file()}
    return sorted(modules | names | files)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _has(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or _is_module(f"{module}.{name}")


@pytest.mark.parametrize("folder", ["attacks", "stalls", "honest"])
def test_every_part_of_the_course_that_a_submission_refers_to_exists(folder):
    found = {case.name: missing(code(case)) for case in load(folder)}
    assert {name: parts for name, parts in found.items() if parts} == {}


def test_a_renamed_module_class_or_file_is_found():
    text = """
from course_pkg.grading.contract.grading_session import GradingSession, Missing as old
import course_pkg.grading.contract.judge
open("grading/checks/lora_math/ask.py")
"""
    assert missing(text) == [
        "course_pkg.grading.contract.grading_session.Missing",
        "course_pkg.grading.contract.judge",
        "grading/checks/lora_math/ask.py",
    ]


def test_the_hash_of_a_submission_does_not_depend_on_its_description(tmp_path, monkeypatch):
    from . import corpus

    text = 'title = "t"\nwhy = "w"\nkind = "k"\nbuild = "truncated"\n'
    (tmp_path / "attacks").mkdir()
    path = tmp_path / "attacks" / "one.toml"
    monkeypatch.setattr(corpus, "__file__", str(tmp_path / "corpus.py"))
    path.write_text(text)
    first = load("attacks")[0].sha
    path.write_text(text.replace('"t"', '"T"').replace('"w"', '"W"').replace('"k"', '"K"'))
    assert load("attacks")[0].sha == first
    path.write_text(text + 'before = "1"\n')
    assert load("attacks")[0].sha != first


def test_every_attack_has_an_up_to_date_row_of_stock_nbgrader():
    rows = read()["rows"]
    stale = [n for n, case in ATTACKS.items() if rows.get(n, {}).get("sha") != case.sha]
    assert stale == [], "run python -m tests.grading.attacks"
    assert rows.keys() == ATTACKS.keys()
    for name, case in ATTACKS.items():
        assert rows[name]["forged"] == (rows[name]["score"] > case.score), name


def test_stock_nbgrader_can_be_forged_so_the_attacks_are_real():
    count = read()["count"]
    assert count["forged"] >= 20 and count["leaked"] >= 10 and count["failed"] >= 3


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}")
@pytest.mark.parametrize("name", RERUN)
def test_a_fresh_run_of_stock_nbgrader_reproduces_its_row(name, tmp_path):
    recorded = read()["rows"][name]
    fresh = Stock(tmp_path).attack(ATTACKS[name])
    assert {k: fresh[k] for k in ("score", "forged", "state")} == {
        k: recorded[k] for k in ("score", "forged", "state")
    }
