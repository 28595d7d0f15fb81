"""Which code a piece of Python can run: definitions of the course's package, found by parsing.

Names are followed through imports to the functions, classes and values that they stand for, and
through those to others. A class counts whole, and so does a module that is passed on as an object.
A string that is a module's dotted name, such as a fork server is given, counts as its import. Names
that are put together at run time are not seen.
"""

import ast
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course_pkg.common.fingerprints.structure import bound_names, parsed, structure, without_effect

PACKAGE = "course_pkg"
WHOLE = "*"  # as a name: every definition of a module
LOADED = ""  # as a name: the module is imported, no more
OWN_NAMES = frozenset(["__version__"])  # change with every release
DIGITS = 12  # of a file's hash

Name = tuple[str, str]  # a module's dotted name, and a name in it, WHOLE or LOADED


class Unit:
    """A statement at the top of a module."""

    def __init__(self, node: ast.stmt) -> None:
        self.node = node
        self._structure = ""

    @property
    def structure(self) -> str:
        self._structure = self._structure or structure(self.node)
        return self._structure


@dataclass
class Module:
    """A parsed module: what its names stand for.

    units: its statements, in order. named: the numbers of those that bind or change a name.
    effects: the numbers of those that do something when the module is imported. imported: what an
    imported name stands for. lazy: names that are imported on first use. loads: what importing it
    imports. stars: modules of which it imports every name.
    """

    name: str
    path: Path
    units: list[Unit] = field(default_factory=list)
    named: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    effects: list[int] = field(default_factory=list)
    imported: dict[str, Name] = field(default_factory=dict)
    lazy: dict[str, Name] = field(default_factory=dict)
    loads: list[Name] = field(default_factory=list)
    stars: list[str] = field(default_factory=list)
    known: dict[int, "Used"] = field(default_factory=dict)


@dataclass(frozen=True)
class Used:
    """What a statement uses: names of other modules, names of its own, and its strings."""

    others: frozenset[Name]
    own: frozenset[str]
    strings: frozenset[str]


@dataclass
class Reached:
    """What some code can run: for each module, the numbers of its statements; and its strings."""

    modules: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    strings: dict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))


class Sources:
    """The package's modules under `root`, each parsed once.

    beside: a folder with scripts, whose modules import each other by their plain names. leave_out:
    plain names that are not followed.
    """

    def __init__(
        self, root: Path, beside: Path | None = None, leave_out: tuple[str, ...] = ()
    ) -> None:
        self.root = root
        self.beside = beside
        self.leave_out = leave_out
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """A module of the package or a script beside, parsed; None if there is none."""
        if name not in self._modules:
            path = self._file(name)
            self._modules[name] = None
            if path is not None:
                self._modules[name] = self.parsed(path.read_text("utf-8"), name, path)
        return self._modules[name]

    def _file(self, name: str) -> Path | None:
        parts = name.split(".")
        if parts[0] == PACKAGE:
            base = self.root.joinpath(*parts)
        elif self.beside and len(parts) == 1 and name.isidentifier() and name not in self.leave_out:
            base = self.beside / name
        else:
            return None
        candidates = (base / "__init__.py", base.with_suffix(".py"))
        return next((path for path in candidates if path.is_file()), None)

    def parsed(self, code: str, name: str, path: Path) -> Module:
        """A module of this code; an empty one for a syntax error, which whoever runs it sees."""
        module = Module(name, path)
        try:
            body = parsed(code).body
        except SyntaxError:
            return module
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in body:
            if without_effect(node):
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(module, node, package)
                continue
            if not OWN_NAMES.isdisjoint(bound_names([node])):
                continue
            module.units.append(Unit(node))
            for inner in ast.walk(node) if _runs_on_import(node) else ():
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    self._import(module, inner, package)
        for number, unit in enumerate(module.units):
            changed = {name for name in _changed(unit.node) if name not in module.imported}
            names = changed.union(bound_names([unit.node]))
            for bound in names:
                module.named[bound].append(number)
            if not names and not _is_main(unit.node):
                module.effects.append(number)
        module.lazy = _lazy_names(path, package)
        return module

    def _import(self, module: Module, node: ast.Import | ast.ImportFrom, package: str) -> None:
        for bound, target in imports(node, package):
            module.loads.append(target)
            if bound == WHOLE:
                module.stars.append(target[0])
            else:
                module.imported[bound] = target

    def used(self, module: Module, number: int) -> Used:
        if number not in module.known:
            package = module.name
            if module.path.name != "__init__.py":
                package = module.name.rpartition(".")[0]
            module.known[number] = _Uses(self, module, package).of(module.units[number].node)
        return module.known[number]

    def resolve(self, target: Name) -> Name | None:
        """A name of a module; if it stands for a module of the package, that module, LOADED."""
        owner, name = target
        module = self.module(owner)
        if module is None:
            return None
        known = name in module.named or name in module.imported or name in module.lazy
        if name in (WHOLE, LOADED) or known:
            return target
        if self.module(f"{owner}.{name}") is not None:
            return f"{owner}.{name}", LOADED
        for star in module.stars:
            if target := self.resolve((star, name)):
                return target
        return None

    def reach(self, *roots: Name | Module) -> Reached:
        """What the roots can run: names of modules, and modules from `parsed`, as scripts."""
        reached = Reached()
        done: set[Name] = set()
        waiting: list[Name] = []

        def add(module: Module, numbers: Iterable[int]) -> None:
            for number in numbers:
                if number in reached.modules[module.name]:
                    continue
                reached.modules[module.name].add(number)
                used = self.used(module, number)
                reached.strings[module.path] |= used.strings
                waiting.extend(used.others)
                waiting.extend((module.name, name) for name in used.own)

        for root in roots:
            if isinstance(root, Module):
                self._modules[root.name] = root
                root = (root.name, WHOLE)
            waiting.append(root)
        while waiting:
            target = waiting.pop()
            if target in done:
                continue
            done.add(target)
            owner, name = target
            module = self.module(owner)
            if module is None:
                continue
            if name == LOADED:
                reached.modules.setdefault(owner, set())
                if parent := owner.rpartition(".")[0]:
                    waiting.append((parent, LOADED))
                loads = filter(None, map(self.resolve, module.loads))
                waiting += {(loaded, LOADED) for loaded, _ in loads}
                add(module, module.effects)
                continue
            waiting.append((owner, LOADED))
            if name == WHOLE:
                add(module, range(len(module.units)))
                if module.path.name == "__init__.py":  # what it imports, it exports
                    waiting += filter(None, map(self.resolve, module.imported.values()))
            elif name in module.named:
                add(module, module.named[name])
            elif name in module.lazy:
                waiting.append(module.lazy[name])
            if name in module.imported and (imported := self.resolve(module.imported[name])):
                waiting.append(imported)
        return reached

    def hashes(self, reached: Reached) -> dict[str, str]:
        """A short hash of what was reached in each file, by its path from the root."""
        hashes = {}
        for name, numbers in reached.modules.items():
            module = self.module(name)
            texts = [module.units[number].structure for number in sorted(numbers)]
            if texts:
                path = module.path.relative_to(self.root).as_posix()
                hashes[path] = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:DIGITS]
        return dict(sorted(hashes.items()))


class _Uses:
    def __init__(self, sources: Sources, module: Module, package: str) -> None:
        self.sources = sources
        self.module = module
        self.package = package
        self.others: set[Name] = set()
        self.own: set[str] = set()
        self.strings: set[str] = set()
        self.local: dict[str, Name] = {}  # what is imported inside of the statement

    def of(self, node: ast.AST) -> Used:
        inside = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
        for statement in inside:
            for bound, target in imports(statement, self.package):
                if resolved := self.sources.resolve(target):
                    self.local[bound] = resolved
                    self.others.add(resolved)
        self._visit(node)
        return Used(frozenset(self.others), frozenset(self.own), frozenset(self.strings))

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.Name):
            self._name(node.id, passed_on=True)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.strings.add(node.value)
            dotted = node.value.partition(":")[0]
            if dotted.startswith(f"{PACKAGE}.") and self.sources.module(dotted) is not None:
                self.others.add((dotted, WHOLE))
        elif not without_effect(node):
            for name, value in ast.iter_fields(node):
                if name in ("annotation", "returns") and not isinstance(node, ast.AnnAssign):
                    continue
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self._visit(child)

    def _name(self, name: str, passed_on: bool) -> Name | None:
        """Note that a name is used; the module that it stands for, if it is one."""
        target = self.local.get(name)
        if target is None:
            if name in self.module.named or name in self.module.imported:
                self.own.add(name)
            target = self.module.imported.get(name)
            target = target and self.sources.resolve(target)
        if target is None or target[1] != LOADED:
            return None
        if passed_on:
            self.others.add((target[0], WHOLE))
        return target

    def _attribute(self, node: ast.Attribute) -> None:
        names = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            names.append(value.attr)
            value = value.value
        if not isinstance(value, ast.Name):
            self._visit(value)
            return
        target = self._name(value.id, passed_on=False)
        while target is not None and names:
            target = self.sources.resolve((target[0], names.pop()))
            if target is not None:
                self.others.add(target)
                if target[1] != LOADED:
                    return


def imports(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Name]]:
    """The names that an import binds, with what they stand for. package: of relative imports.

    >>> list(imports(ast.parse("from a.b import c as d").body[0], ""))
    [('d', ('a.b', 'c'))]
    >>> list(imports(ast.parse("import a.b").body[0], ""))
    [('a', ('a', '')), ('a.b', ('a.b', ''))]
    """
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            parents = package.split(".") if node.level else []
            parents = parents[: len(parents) - node.level + 1]
            owner = ".".join([*parents, node.module] if node.module else parents)
            yield alias.asname or alias.name, (owner, alias.name)
        elif alias.asname:
            yield alias.asname, (alias.name, LOADED)
        else:
            top = alias.name.partition(".")[0]
            yield top, (top, LOADED)
            if top != alias.name:
                yield alias.name, (alias.name, LOADED)


def all_imports(tree: ast.AST, package: str = "") -> Iterator[Name]:
    """What a syntax tree imports, also inside of functions. package: of relative imports.

    >>> list(all_imports(ast.parse("def f():\\n    from a.b import c")))
    [('a.b', 'c')]
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (target for _, target in imports(node, package))


def _runs_on_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While)


def _is_main(node: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__":`, which an import does not run."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    return getattr(node.test.left, "id", "") == "__name__"


def _changed(node: ast.stmt) -> set[str]:
    """The names whose values a statement changes: `TABLE[x] = y`, `app.add(x)`, `@app.get()`."""
    changed: list[ast.AST] = []
    if isinstance(node, ast.Assign):
        changed += node.targets
    elif isinstance(node, ast.AugAssign):
        changed.append(node.target)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        changed.append(node.value.func)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        calls = [call for call in node.decorator_list if isinstance(call, ast.Call)]
        changed += [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    names = set()
    for target in changed:
        inside = target
        while isinstance(inside, ast.Attribute | ast.Subscript):
            inside = inside.value
        if isinstance(inside, ast.Name) and inside is not target:
            names.add(inside.id)
    return names


def _lazy_names(init: Path, package: str) -> dict[str, Name]:
    """The names that a folder exports lazily, by the stub beside its `__init__`."""
    stub = init.with_suffix(".pyi")
    if init.name != "__init__.py" or not stub.is_file():
        return {}
    body = parsed(stub.read_text("utf-8")).body
    return dict(name for statement in body for name in imports(statement, package))
