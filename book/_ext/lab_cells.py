"""Which cells of a page run in the browser, and what must run before them.

The browser's Python has the standard library and the modules of this course that need nothing
else. A statement that imports something else can't run, and so can't one that uses a name which
such a statement would have defined. A cell that is shown runs if all its statements can. From all
other cells, those statements are taken that define or change what a later shown cell uses.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import nbformat

from course_pkg.common.fingerprints.reach import all_imports

Missing = Callable[[str, str], str]  # (module, name) → the package that is missing, or ""
HIDDEN = {"remove-cell", "remove-input", "lab-off"}
CANNOT_FAIL = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True)
class LabCell:
    """A code cell as the browser gets it.

    index: its place among the notebook's cells. code: the whole cell if `shown`, else what other
    cells need. missing: packages without which a shown cell can't run.
    """

    index: int
    name: str
    code: str
    shown: bool
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """A statement of the top level, the names that it uses and defines, and what it lacks."""

    node: ast.stmt
    uses: frozenset[str]
    defines: frozenset[str]
    missing: frozenset[str]

    @property
    def needed_alone(self) -> bool:
        """Whether it could change an object that it uses: not an assertion, not a definition."""
        return not self.defines and not isinstance(self.node, ast.Assert)


def names_of(node: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """The global names that a statement uses, also inside of functions, and those it defines.

    >>> uses, defines = names_of(ast.parse("def f(x): return x + y").body[0])
    >>> sorted(uses), sorted(defines)
    (['y'], ['f'])
    """
    top = symtable.symtable(ast.unparse(node), "cell", "exec")
    uses = {each.get_name() for each in top.get_symbols() if each.is_referenced()}
    defines = {
        each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()
    }
    for table in _inner(top):
        uses |= {
            each.get_name()
            for each in table.get_symbols()
            if each.is_global() and each.is_referenced()
        }
    if isinstance(node, ast.For):  # it sets its variable itself
        uses -= names_in(node.target) - names_in(node.iter)
    return frozenset(uses), frozenset(defines)


def names_in(node: ast.AST) -> set[str]:
    """The names in a piece of code, such as those of `a, (b, c)`."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _inner(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _inner(child)


def one_by_one(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, with `from a import b, c` as two."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom) and len(node.names) > 1:
            for alias in node.names:
                fields = {**dict(ast.iter_fields(node)), "names": [alias]}
                yield ast.copy_location(type(node)(**fields), node)
        else:
            yield node


def statements(code: str, lacking: dict[str, frozenset[str]], missing: Missing) -> list[Statement]:
    """The statements of a cell. lacking: packages missing for a name; the cell's are added."""
    found = []
    for node in one_by_one(ast.parse(code).body):
        uses, defines = names_of(node)
        packages = {missing(*each) for each in all_imports(node)} - {""}
        packages |= {package for name in uses for package in lacking.get(name, ())}
        for name in defines:
            lacking[name] = frozenset(packages)
        found.append(Statement(node, uses, defines, frozenset(packages)))
    return found


def needed_part(cell: list[Statement], needed: set[str]) -> str:
    """What of a cell defines or changes the names in `needed`, to which its own uses are added.

    A statement that fails when it runs, such as a call of a function that imports numpy inside,
    doesn't keep the others from running.
    """
    kept = []
    for each in reversed(cell):
        changes = each.needed_alone and each.uses & needed
        if not each.missing and (each.defines & needed or changes):
            node = each.node if isinstance(each.node, CANNOT_FAIL) else _tolerant(each.node)
            kept.append(ast.unparse(ast.fix_missing_locations(node)))
            needed |= each.uses
    return "\n".join(reversed(kept))


def _tolerant(node: ast.stmt) -> ast.stmt:
    handler = ast.ExceptHandler(type=ast.Name("Exception"), body=[ast.Pass()])
    return ast.Try(body=[node], handlers=[handler], orelse=[], finalbody=[])


def lab_cells(notebook: nbformat.NotebookNode, missing: Missing) -> list[LabCell]:
    """The page's code cells that are shown, and what the browser needs of the others."""
    lacking: dict[str, frozenset[str]] = {}
    read: list[tuple[int, str, bool, list[Statement]]] = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        tags = set(cell.metadata.get("tags", ()))
        try:
            parts = statements(cell.source, lacking, missing)
        except SyntaxError:  # a magic of IPython, or an error that the page shows
            parts = [Statement(ast.Pass(), frozenset(), frozenset(), frozenset(["IPython"]))]
        read.append((index, cell.source, not tags & HIDDEN, parts))
    found: list[LabCell] = []
    needed: set[str] = set()
    number = sum(shown for _, _, shown, _ in read)
    for index, source, shown, parts in reversed(read):
        packages = tuple(sorted({package for each in parts for package in each.missing}))
        if shown and not packages:
            for each in reversed(parts):
                needed |= each.uses
            found.append(LabCell(index, f"cell {number}", source, True))
        else:
            code = needed_part(parts, needed)
            if shown or code:
                found.append(LabCell(index, f"cell {number}", code, shown, packages))
        number -= shown
    found.reverse()
    return found


def offered(cells: list[LabCell]) -> list[LabCell]:
    """The cells that a reader can run; a page without any has no lab."""
    return [cell for cell in cells if cell.shown and not cell.missing]
