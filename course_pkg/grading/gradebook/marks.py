"""Marks around solutions and hidden tests that nbgrader would not recognize.

nbgrader removes what is between its exact marks. Text behind a mistyped one goes to the students.

Chapter: appendix/for-instructors.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path

EXACT = (
    "### BEGIN SOLUTION", "### END SOLUTION", "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS",
    "=== BEGIN MARK SCHEME ===", "=== END MARK SCHEME ===",
)  # fmt: skip
_PHRASES = tuple(re.sub(r"\W", "", mark).casefold() for mark in EXACT)
_BEGIN = r"(?:begin(?:ning|s)?|start(?:s|ing)?|end(?:s|ing)?|stop)"
_FILLER = r"(?:(?:of|the|my|your|model|sample|hidden|test)[\W_]+)*"
_WHAT = r"(?:solutions?|hidden[\W_]*tests?|mark(?:ing)?[\W_]*schemes?)"
_DECORATED = re.compile(
    rf"(?:^(?=\W*[#=*/<%-])|\s#)\W*+"  # also behind code
    rf"(?:{_BEGIN}[\W_]*{_FILLER}(?:{_WHAT}\b|(?:answers?|soln?)\W*$)|{_WHAT}[\W_]*{_BEGIN}\W*$)",
    re.I,
)
_ALIKE = 0.9  # of the letters: one of a mark's 11 or more is missing, wrong, or twice there
_ALIKE_BEHIND_SIGNS = 0.845  # behind ### or ===: two
_SIGNS = re.compile(r"[\s\"']*(?:##|==)")
_LATIN = str.maketrans(  # Cyrillic and Greek letters that look so
    "АВЕІКМНОРСТУХЅаеіорсухѕΑΒΕΗΙΚΜΝΟΡΤΧο", "ABEIKMHOPCTYXSaeiopcyxsABEHIKMNOPTXo"
)


def mistyped(line: str) -> bool:
    """Whether a line looks like a mark and has none that nbgrader recognizes.

    >>> [mistyped(f"{sign} SOLUTION") for sign in ("### BEGIN", "###  BEGIN", "# begin")]
    [False, True, True]
    """
    if any(mark in line for mark in EXACT):
        return False
    line = unicodedata.normalize("NFKC", line).strip().translate(_LATIN)
    if _DECORATED.search(line):
        return True
    letters = re.sub(r"[\W_]", "", line).casefold()
    if not 8 <= len(letters) <= 24:
        return False
    least = _ALIKE_BEHIND_SIGNS if _SIGNS.match(line) else _ALIKE
    return any(SequenceMatcher(None, letters, one).ratio() >= least for one in _PHRASES)


def problems(path: Path, released: bool) -> Iterator[str]:
    """Lines of a notebook or another text file that must not stay, each with its place.

    released: whether the file is the students', where nbgrader's exact marks are wrong, too.
    """
    for where, number, line in _lines(path):
        shown = released and any(mark in line for mark in EXACT)
        if shown or mistyped(line):
            yield f"{where}line {number}: {line.strip()[:100]!r}"


def _lines(path: Path) -> Iterator[tuple[str, int, str]]:
    """The lines of a file: the cell with a comma, or "", then the number and the text."""
    data = path.read_bytes()
    sources = None
    if path.suffix == ".ipynb":
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # or it is read as text
            sources = ["".join(cell.get("source", "")) for cell in json.loads(data)["cells"]]
    if sources is None:
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            yield "", number, line
        return
    for index, text in enumerate(sources, 1):
        for number, line in enumerate(text.splitlines(), 1):
            yield f"cell {index}, ", number, line
