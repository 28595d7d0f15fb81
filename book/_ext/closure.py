"""Which files a piece of Python depends on: the modules that it imports, and those they import.

Imports are found by parsing, nothing is run. So imports built at run time from parts of names
are not seen, and neither are programs that the code starts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = "course_pkg"


def module_file(root: Path, name: str) -> Path | None:
    """The file of module `name` under `root`, or None if there is no such module."""
    base = root.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def imported_names(tree: ast.AST, importer: str, is_package: bool) -> Iterator[str]:
    """Every dotted name that `tree` may import; `importer` resolves relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = importer.split(".") if importer else []
            up = node.level - is_package
            prefix = parts[: len(parts) - up] if node.level else []
            base = ".".join(prefix + ([node.module] if node.module else []))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # importlib.import_module("course_pkg.…"); others name no module


@cache
def module_imports(tree: ast.AST, name: str, is_package: bool) -> list[str]:
    """What a module of the package may import; many pages ask."""
    return list(imported_names(tree, name, is_package))


def package_modules(root: Path, names: list[str]) -> dict[Path, ast.AST]:
    """File → syntax tree of every module of the package that importing `names` runs."""
    waiting = list(names)
    seen = set()
    found = {}
    while waiting:
        name = waiting.pop()
        if name in seen or name.partition(".")[0] != PACKAGE:
            continue
        seen.add(name)
        waiting.append(name.rpartition(".")[0])  # importing a.b.c runs a and a.b first
        path = module_file(root, name)
        if path is None:
            continue
        found[path] = parse(path, path.stat().st_mtime_ns)
        waiting += module_imports(found[path], name, path.name == "__init__.py")
    return found


def script_files(root: Path, script: Path, leave_out: tuple[str, ...] = ()) -> set[Path]:
    """A script, the modules beside it that it imports, and those of the package; to the end.

    leave_out: names of modules beside the script that are not to be followed.
    """
    waiting = [script]
    beside = set()
    names = []
    while waiting:
        path = waiting.pop()
        if path in beside:
            continue
        beside.add(path)
        found = set(imported_names(parse(path, path.stat().st_mtime_ns), "", False))
        names += found
        plain = {name for name in found if name.isidentifier()} - set(leave_out)
        waiting += [file for name in plain if (file := script.with_name(f"{name}.py")).is_file()]
    return beside | set(package_modules(root, names))


def syntax_tree(code: str) -> ast.AST:
    """The tree of Python code; empty for a syntax error, which whoever runs the code sees.

    >>> ast.dump(syntax_tree("import"))
    'Module(body=[], type_ignores=[])'
    """
    try:
        return ast.parse(code)
    except SyntaxError:
        return ast.Module([], [])


@cache
def parse(path: Path, _mtime: int) -> ast.AST:
    return syntax_tree(path.read_text("utf8"))
