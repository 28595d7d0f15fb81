"""What a piece of Python says, without the words: two texts are equal if the code does the same.

Comments, formatting, docstrings, the annotations of functions, the texts of messages and the names
of local variables do not count. Names of parameters do. Nothing is run.
"""

import ast
import threading
from collections.abc import Iterable, Iterator
from typing import Any

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
SCOPES = FUNCTIONS | ast.ClassDef | COMPREHENSIONS
TEXT = "a text"  # stands for every message
CHECKS = "require"  # begins the names of functions that raise an error with the texts they get
WARNINGS = ("warn", "warn_once")
_PARSING = threading.Lock()


def structure(code: str | ast.AST) -> str:
    """The structure of Python code, the same in every version of Python."""
    writer = _Writer()
    writer.write(parsed(code) if isinstance(code, str) else code)
    return "".join(writer.parts)


def parsed(code: str) -> ast.Module:
    """The syntax tree of Python code.

    One thread at a time: Python 3.11 counts the depth of trees for all threads together, and fails
    with "AST constructor recursion depth mismatch" if they change over while it makes one.
    """
    with _PARSING:
        return ast.parse(code)


class _Scope:
    """The names that a function, class or comprehension binds, and what stands for them."""

    def __init__(self, names: Iterable[str], kept: Iterable[str] = (), depth: int = 0) -> None:
        self.written: dict[str, str] = dict.fromkeys(names, "")
        self.written.update((name, name) for name in kept)
        self.depth = depth
        self.count = 0

    def name(self, name: str) -> str:
        """What is written for a bound name: its number in the order of first use."""
        if not self.written[name]:
            self.written[name] = f"{self.depth}.{self.count}"
            self.count += 1
        return self.written[name]


class _Writer:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.put = self.parts.append
        self.scopes: list[_Scope] = []
        self.messages: set[str] = set()  # local variables that are parts of messages only

    def write(self, node: Any) -> None:
        """Add the text of a node, a list of nodes, or a value."""
        if isinstance(node, list):
            self.put("[")
            for item in node:
                if not without_effect(item):
                    self.write(item)
            self.put("]")
        elif not isinstance(node, ast.AST):
            self.put(f"{node!r},")
        else:
            method = getattr(self, f"write_{type(node).__name__}", None)
            method(node) if method else self.fields(node)

    def fields(self, node: ast.AST, **instead: Any) -> None:
        """Add a node's type and its fields. instead: other values of some of them."""
        self.put(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            value = instead.get(name, value)
            if name in ("type_comment", "kind", "ctx") or value is None or value == []:
                continue
            self.put(f"{name}=")
            self.write(value)
        self.put(")")

    # ---------------------------------------------------------------- names

    def name(self, name: str) -> str:
        """What is written for a name: itself, unless it is local to a function."""
        inner = True
        for scope in reversed(self.scopes):
            visible = inner or scope.depth  # the names of a class are not seen in its methods
            if visible and name in scope.written:
                return scope.name(name)
            inner = False
        return name

    def write_Name(self, node: ast.Name) -> None:
        self.put(f"Name({self.name(node.id)})")

    def write_alias(self, node: ast.alias) -> None:
        bound = node.asname or node.name.partition(".")[0]
        self.put(f"alias({node.name},{self.name(bound)})")

    def write_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.fields(node, name=node.name and self.name(node.name))

    write_MatchAs = write_MatchStar = write_ExceptHandler

    def write_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.put(f"{type(node).__name__}({sorted(map(self.name, node.names))})")

    write_Nonlocal = write_Global

    # ---------------------------------------------------------------- scopes

    def write_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.put(f"{type(node).__name__}({self.name(node.name)},")
        self.write(node.decorator_list)
        annotated = any(map(_may_read_annotations, node.decorator_list))
        parameters = all_parameters(node.args)
        self.put(f"{_signature(node.args)},")
        self.write(node.args.defaults)
        self.write([default for default in node.args.kw_defaults if default])
        if annotated:
            self.write([p.annotation for p in parameters if p.annotation])
        kept = [parameter.arg for parameter in parameters]
        with_messages = self.messages
        bound = set(bound_names(node.body)) - set(kept) - set(_declared(node.body))
        self.messages = bound & only_in_messages(node)
        self.scopes.append(_Scope(sorted(bound), kept, self._depth()))
        self.write(node.body)
        self.scopes.pop()
        self.messages = with_messages
        self.put(")")

    write_AsyncFunctionDef = write_FunctionDef

    def write_Lambda(self, node: ast.Lambda) -> None:
        parameters = [parameter.arg for parameter in all_parameters(node.args)]
        self.put(f"Lambda({len(parameters)},")
        self.write(node.args.defaults)
        self.write([default for default in node.args.kw_defaults if default])
        self.scopes.append(_Scope(parameters, depth=self._depth()))
        for parameter in parameters:
            self.put(self.name(parameter))
        self.write(node.body)
        self.scopes.pop()
        self.put(")")

    def write_ListComp(self, node: ast.ListComp) -> None:
        targets = [
            name.id
            for generator in node.generators
            for name in ast.walk(generator.target)
            if isinstance(name, ast.Name)
        ]
        self.put(f"{type(node).__name__}(")
        self.write(node.generators[0].iter)
        self.scopes.append(_Scope(targets, depth=self._depth()))
        for number, generator in enumerate(node.generators):
            self.fields(generator, **({} if number else {"iter": None}))
        elements = [getattr(node, name, None) for name in ("elt", "key", "value")]
        self.write([element for element in elements if element])
        self.scopes.pop()
        self.put(")")

    write_SetComp = write_DictComp = write_GeneratorExp = write_ListComp

    def write_ClassDef(self, node: ast.ClassDef) -> None:
        self.put(f"ClassDef({self.name(node.name)},")
        for part in (node.decorator_list, node.bases, node.keywords):
            self.write(part)
        names = set(bound_names(node.body))
        self.scopes.append(_Scope((), names))
        self.write(node.body)
        self.scopes.pop()
        self.put(")")

    def write_AnnAssign(self, node: ast.AnnAssign) -> None:
        in_class = self.scopes and not self.scopes[-1].depth
        if in_class:  # dataclasses and pydantic read it
            self.fields(node)
        elif node.value:
            assign = ast.Assign([node.target], node.value)
            self.write(assign)

    def _depth(self) -> int:
        return 1 + len(self.scopes)

    # ---------------------------------------------------------------- messages

    def message(self, node: ast.AST) -> None:
        """Add a part of a message: only what is not a text counts."""
        if self.is_text(node):
            self.put(TEXT)
        else:
            self.write(node)

    def is_text(self, node: ast.AST) -> bool:
        """Whether the value of an expression in a message is certainly a text."""
        if isinstance(node, ast.Name):
            return node.id in self.messages
        if isinstance(node, ast.BinOp):
            return self.is_text(node.left) or self.is_text(node.right)
        if isinstance(node, ast.IfExp):
            return self.is_text(node.body) and self.is_text(node.orelse)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self.is_text(node.func.value)  # ", ".join(names)
        return _has_words(node)

    def write_Raise(self, node: ast.Raise) -> None:
        self.put("Raise(")
        if isinstance(node.exc, ast.Call):
            self.call_with_messages(node.exc)
        elif node.exc:
            self.message(node.exc)
        if node.cause:
            self.write(node.cause)
        self.put(")")

    def write_Assert(self, node: ast.Assert) -> None:
        self.fields(node, msg=None)

    def write_Call(self, node: ast.Call) -> None:
        if takes_messages(node):
            self.call_with_messages(node)
        else:
            self.fields(node)

    def call_with_messages(self, node: ast.Call) -> None:
        self.put("Call(")
        self.write(node.func)
        for argument in node.args:
            self.message(argument)
        for keyword in node.keywords:
            self.put(f"{keyword.arg}=")
            self.message(keyword.value)
        self.put(")")

    def write_Assign(self, node: ast.Assign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if all(isinstance(t, ast.Name) and t.id in self.messages for t in targets):
            self.put(f"{type(node).__name__}(")
            self.write(targets)
            self.message(node.value)
            self.put(")")
        else:
            self.fields(node)

    write_AugAssign = write_Assign


def without_effect(node: Any) -> bool:
    """Whether a statement does nothing: a docstring, `pass`, or imports for type checkers.

    >>> [without_effect(s) for s in ast.parse("'words'; pass; f()").body]
    [True, True, False]
    """
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return getattr(node.test, "id", "") == "TYPE_CHECKING" and not node.orelse
    return isinstance(node, ast.Pass)


def bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements bind in their own scope.

    >>> list(bound_names(ast.parse("x = [y for y in z]\\ndef f(a): b = 1\\nimport os.path").body))
    ['x', 'f', 'os']
    """
    waiting: list[ast.AST] = list(reversed(body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if isinstance(node, COMPREHENSIONS):  # `:=` inside binds outside
            yield from (n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        if not isinstance(node, SCOPES):
            waiting += reversed(list(ast.iter_child_nodes(node)))


def takes_messages(call: ast.Call) -> bool:
    """Whether the texts that a function gets are for a message: a warning, a check of arguments."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    return name.lstrip("_").startswith(CHECKS) or name in WARNINGS


def only_in_messages(function: ast.AST) -> set[str]:
    """The names that a function reads in its messages and nowhere else.

    >>> sorted(only_in_messages(ast.parse("a = b; why = f'{a}'; raise ValueError(why)")))
    ['why']
    """
    inside: set[ast.AST] = set()
    for node in ast.walk(function):
        call = node.exc if isinstance(node, ast.Raise) else node
        if isinstance(call, ast.Call) and (call is not node or takes_messages(call)):
            parts = [*call.args, *(keyword.value for keyword in call.keywords)]
            names = [name for part in parts if not _is_call(part) for name in ast.walk(part)]
            inside.update(names)
    read = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    read = [node for node in read if isinstance(node.ctx, ast.Load)]
    return {node.id for node in read} - {node.id for node in read if node not in inside}


def all_parameters(arguments: ast.arguments) -> list[ast.arg]:
    """The parameters of a function, in their order."""
    first = (*arguments.posonlyargs, *arguments.args, arguments.vararg)
    return list(filter(None, (*first, *arguments.kwonlyargs, arguments.kwarg)))


def _signature(arguments: ast.arguments) -> str:
    groups = (arguments.posonlyargs, arguments.args, arguments.kwonlyargs)
    names = [[parameter.arg for parameter in group] for group in groups]
    with_default = [default is not None for default in arguments.kw_defaults]
    rest = [getattr(arg, "arg", None) for arg in (arguments.vararg, arguments.kwarg)]
    return f"{names}{with_default}{rest}"


def _declared(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Global | ast.Nonlocal):
                yield from node.names


def _may_read_annotations(decorator: ast.expr) -> bool:
    """Whether a decorator may read them, such as `@app.post("/v1/completions")`."""
    return isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute)


def _is_call(node: ast.AST) -> bool:
    """Whether it calls something that may do more than put a text together."""
    return isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute)


def _has_words(node: ast.AST) -> bool:
    """Whether it is a text of several words; a single one may be the code of an error."""
    if isinstance(node, ast.JoinedStr):
        return any(map(_has_words, node.values))
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
