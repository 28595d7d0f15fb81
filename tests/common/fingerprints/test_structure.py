"""The structure of code: words and names of local variables don't count, all else does."""

import re

import pytest

from course_pkg.common.fingerprints.structure import structure

BEFORE = '''
"""Doc."""
from typing import TYPE_CHECKING

import math

if TYPE_CHECKING:
    from a import B

def area(radius: float, *, scale=1.0) -> float:
    """Doc."""
    if radius < 0:
        problem = f"radius is {radius}"
        problem += ", which is negative"
        raise ValueError(f"{problem}; give a positive one")
    require_number(scale, "the scale", fix="give a number")
    pi = math.pi
    parts = [scale * x for x in (radius, radius)]
    with open("a") as file:
        first, second = parts
    key = lambda part: part + pi

    def inner():
        return first * pi

    return inner() * second

class Circle:
    """Doc."""

    radius: float = 1.0
    code = "a.b"

    def grow(self, by):
        assert by > 0, "it only grows"
        for step in range(by):
            self.radius += step
        return self
'''
SAME = [
    ('"""Doc."""\nfrom', '"""Other words."""\nfrom'),
    ('    """Doc."""\n    if', '    """More.\n\n    >>> 1\n    """\n    if'),
    ("import math\n", "import math  # a comment\n\n\n"),
    ("[scale * x for x in (radius, radius)]", "[\n  scale*x for x in (radius,radius)]"),
    ("radius: float, *, scale=1.0) -> float", "radius, *, scale: int = 1.0)"),
    ("    from a import B", "    from a import B, C"),
    ("; give a positive one", "; try another one"),
    ('f"radius is {radius}"', '"the radius is wrong"'),
    (", which is negative", ", below zero"),
    ('"the scale", fix="give a number"', '"the scaling factor", fix="give one number"'),
    ("it only grows", "it grows by more than 0"),
    ("pi = math.pi", "pi: float = math.pi"),
]
RENAMED = {
    "pi =": ("pi", "half_turn"),
    "for x in": ("x", "each"),
    "as file": ("file", "stream"),
    "first, second": ("second", "other"),
    "lambda part": ("part", "item"),
    "def inner": ("inner", "product"),
    "for step": ("step", "amount"),
}
OTHER = [
    ("radius < 0", "radius <= 0"),
    ("ValueError(", "TypeError("),
    ("def area", "def surface"),
    ("scale=1.0", "scale=2.0"),
    ("radius: float, *, scale", "r: float, *, scale"),
    ("*, scale=1.0", "scale=1.0"),
    ('open("a")', 'open("b")'),
    ("first * pi", "second * pi"),
    ("radius: float = 1.0", "radius: int = 1.0"),  # a dataclass or pydantic may read it
    ('code = "a.b"', 'code = "a.c"'),
    ("by > 0", "by >= 0"),
    ("self.radius += step", "self.radius -= step"),
    ("return self", "return None"),
    ("math.pi", "math.tau"),
    ("require_number(scale", "require_number(radius"),
]


def edited(old: str, new: str) -> str:
    assert BEFORE.count(old) >= 1, old
    return structure(BEFORE.replace(old, new, 1))


def test_words_formatting_and_annotations_of_functions_do_not_count():
    assert [old for old, new in SAME if edited(old, new) != structure(BEFORE)] == []


def test_names_of_local_variables_do_not_count():
    changed = []
    for place, (old, new) in RENAMED.items():
        assert place in BEFORE
        words = re.sub(rf"(?<![\w.\"]){old}(?![\w\"])", new, BEFORE)
        if words == BEFORE or structure(words) != structure(BEFORE):
            changed.append(place)
    assert changed == []


def test_everything_else_counts():
    assert [old for old, new in OTHER if edited(old, new) == structure(BEFORE)] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(a):\n    b = a\n    return b", "def f(a):\n    b = a\n    return a"),
        ("def f(a):\n    x = y = a\n    return x", "def f(a):\n    x = y = a\n    return z"),
        ("def f():\n    global x\n    x = 1", "def f():\n    x = 1"),
        ("def f(x):\n    return [x for y in x]", "def f(x):\n    return [y for y in x]"),
        ("class A:\n    b = 1", "class A:\n    c = 1"),
        ("raise E('x')", "raise E('y')"),  # one word may be the code of an error
        ("def f(a):\n    raise E(g(a))", "def f(a):\n    raise E(h(a))"),
        (
            "def f():\n    t = 'one text'\n    raise E(t)\n    return t",
            "def f():\n    t = 'a text'\n    raise E(t)\n    return t",
        ),
        ("@app.get('/a')\ndef f(x: int): pass", "@app.get('/a')\ndef f(x: str): pass"),
        ("match x:\n    case [y, *z]: f(z)", "match x:\n    case [y, *z]: f(y)"),
    ],
)
def test_what_is_bound_used_or_read_counts(one, other):
    assert structure(one) != structure(other)


def test_a_renamed_local_is_followed_into_inner_functions_but_not_where_it_is_hidden():
    code = "def f(a):\n    b = a\n    def g(b):\n        return b\n    return g(b)"
    renamed = code.replace("b = a", "c = a")
    renamed = renamed.replace("return g(b)", "return g(c)")
    assert structure(code) == structure(renamed)
    assert structure(code) != structure(code.replace("return b\n", "return a\n"))
