"""Texts from students: which can be an id, how any other is printed, and what a CSV may hold."""

import re
import unicodedata

MAX_ID = 64
# Letters and marks that are invisible, or change how another letter looks.
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_INSIDE = " ._-@+'"
_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?")
# Some spreadsheets split at ";" or tabs what others split at ",", and end rows at "\r" as well.
_CELL = re.compile(r"(^|[;\t\r\n])([^;\t\r\n]*)")


def shown(name: str) -> str:
    """An untrusted name for a message: unprintable characters are escaped, long names cut."""
    text = repr(name)[1:-1].replace("\\'", "'") if not name.isprintable() else name
    return text if len(text) <= 120 else text[:119] + "…"


def writable(name: str) -> bool:
    """Whether every system can write a file with this name, which is not a path.

    All kinds of spaces are allowed: macOS puts a narrow one into the names of screenshots.
    """
    plain = (c.isprintable() or c == "\u200d" or unicodedata.category(c) == "Zs" for c in name)
    return "\\" not in name and all(plain)


def valid_student(student: str) -> bool:
    """Whether a text can be a student's id: letters and digits; inside also dots, dashes, @, …

    Such an id is never a path, a spreadsheet formula or a glob pattern, and is fully visible.
    """
    if not 0 < len(student) <= MAX_ID or len(student.encode("utf-8", "replace")) > 200:
        return False
    if (
        not unicodedata.is_normalized("NFC", student)
        or ".." in student
        or INVISIBLE.search(student)
    ):
        return False
    kinds = [unicodedata.category(c) for c in student]
    plain = [k[0] == "L" or k == "Nd" for k in kinds]
    inside = [
        letter or kind in ("Mn", "Mc") or character in _INSIDE
        for letter, kind, character in zip(plain, kinds, student, strict=True)
    ]
    return plain[0] and student[-1] not in " ." and all(inside)


def valid_assignment(name: str) -> bool:
    """Whether a text can be an assignment's name, which is a folder's: visible, and no pattern.

    Example:

        >>> [valid_assignment(name) for name in ("HW 1 (late)", "../hw", ".hw", "a*", "a+b")]
        [True, False, False, False, False]
    """
    plain = name.isprintable() and not set(name) & set('/\\*?[]+:"<>|')
    return 0 < len(name) <= MAX_ID and plain and name[0] not in ". -" and name[-1] not in " ."


def inert(text: str) -> str:
    """The text, with an apostrophe wherever a spreadsheet would begin a formula.

    A formula begins with a sign or @, also a wide one or one behind invisible characters, and goes
    on. A number or a sign alone is not a formula.

    Example:

        >>> inert("=1+1"), inert("\\ufeff ＝1+1"), inert("ada; +1 2"), inert("-2.5"), inert("-")
        ("'=1+1", "'\\ufeff ＝1+1", "ada;' +1 2", '-2.5', '-')
    """
    return _CELL.sub(_inert_cell, text)


def _inert_cell(cell: re.Match[str]) -> str:
    before, inside = cell.groups()
    seen = [c for c in inside if unicodedata.category(c)[0] not in "ZC" and not INVISIBLE.match(c)]
    if _NUMBER.fullmatch(inside) or len(seen) < 2:
        return cell[0]
    begins = unicodedata.normalize("NFKC", seen[0])[0]
    formula = begins == "@" or unicodedata.category(begins) in ("Sm", "Pd")
    return f"{before}'{inside}" if formula else cell[0]
