"""The corpora: what attacks refer to exists."""

import importlib
import importlib.util
import re

from tests.exercises.assignments import ROOT

from .corpus import Case, load

IMPORTED = re.compile(r"from (course_pkg[\w.]*) import ([\w, ]+)")
MODULE = re.compile(r"\bcourse_pkg(?:\.[a-z]\w*)+")
FILE = re.compile(r"\b(?:adapters|classroom|grading)/[\w/]+\.(?:py|toml)\b")


def code(case: Case) -> str:
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


def test_every_part_of_the_course_that_a_submission_refers_to_exists():
    assert missing('open("grading/checks/lora_math/ask.py")') != []  # there is no such file
    cases = [case for folder in ("attacks", "stalls", "honest") for case in load(folder)]
    absent = {case.name: missing(code(case)) for case in cases}
    assert {name: parts for name, parts in absent.items() if parts} == {}
