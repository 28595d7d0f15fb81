"""Mutants of a piece of Python: copies with one small fault each, as a typo or a slip makes them.

Comparisons, constants, operators, dropped guards, swapped arguments, minimum for maximum. A
mutant's name shows the changed code, old and new, and does not depend on its line.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator

COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "log": "log2", "log2": "log"}


def mutants(code: str) -> Iterator[tuple[str, str]]:
    """The name and the code of every mutant of `code`.

    >>> for name, _ in mutants("def f(x):\\n    return x + 1"):
    ...     print(name)
    x + 1 -> x - 1
    1 -> 2
    1 -> 0
    """
    tree = ast.parse(code)
    nodes = list(ast.walk(tree))
    seen: Counter[str] = Counter()
    for index, node in enumerate(nodes):
        for change in _changes(node):
            mutant = copy.deepcopy(tree)
            target = list(ast.walk(mutant))[index]
            old = ast.unparse(target)
            change(target)
            name = f"{_short(old)} -> {_short(ast.unparse(target))}"
            seen[name] += 1
            suffix = f" #{seen[name]}" if seen[name] > 1 else ""
            yield name + suffix, ast.unparse(ast.fix_missing_locations(mutant))


def _changes(node: ast.AST) -> Iterator:
    match node:
        case ast.Compare(ops=[op]):
            for other in COMPARISONS.get(type(op), ()):
                yield lambda n, other=other: setattr(n, "ops", [other()])
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            yield lambda n: setattr(n, "op", OPERATORS[type(n.op)]())
        case ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield lambda n: setattr(n, "op", OPERATORS[type(n.op)]())
        case ast.BoolOp(op=op):
            other = ast.Or if isinstance(op, ast.And) else ast.And
            yield lambda n: setattr(n, "op", other())
        case ast.Constant(value=bool()):
            yield lambda n: setattr(n, "value", not n.value)
        case ast.Constant(value=int() | float() as value):
            yield lambda n: setattr(n, "value", n.value + 1)
            if value:
                yield lambda n: setattr(n, "value", n.value - 1)
        case ast.UnaryOp(op=ast.USub()):
            yield lambda n: setattr(n, "op", ast.UAdd())
        case ast.UnaryOp(op=ast.Not()):
            yield lambda n: (setattr(n, "op", ast.Not()), setattr(n, "operand", _negated(n)))
        case ast.If() | ast.IfExp() | ast.While():  # a dropped guard
            yield lambda n: setattr(n, "test", ast.Constant(False))
            if not isinstance(node, ast.While):
                yield lambda n: setattr(n, "test", ast.Constant(True))
        case ast.comprehension(ifs=[_, *_]):
            yield lambda n: setattr(n, "ifs", [])
        case ast.Call(args=[_, _], keywords=[]):
            yield lambda n: n.args.reverse()
        case ast.Name(id=name) if name in NAMES:
            yield lambda n: setattr(n, "id", NAMES[n.id])
        case ast.Attribute(attr=name) if name in NAMES:
            yield lambda n: setattr(n, "attr", NAMES[n.attr])
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None:
                yield lambda n: setattr(n, "lower", None)
            if upper is not None:
                yield lambda n: setattr(n, "upper", None)
        case ast.Tuple(elts=[_, _], ctx=ast.Load()):
            yield lambda n: n.elts.reverse()


def _negated(node: ast.UnaryOp) -> ast.UnaryOp:
    return ast.UnaryOp(ast.Not(), node.operand)


def _short(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= 70 else f"{line[:66]} …"
