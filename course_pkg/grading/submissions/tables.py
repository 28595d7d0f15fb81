"""CSV files: those of any spreadsheet are read, and no cell of those that are written is a formula.

Chapter: appendix/for-instructors.
"""

import csv
import io
import re
import unicodedata
from pathlib import Path

from .names import INVISIBLE
from .roster import RosterError

MAX_BYTES = 16 * 1024 * 1024
_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?")
# Some spreadsheets split at ";" or tabs what others split at ",", and end rows at "\r" too.
_CELL = re.compile(r"(^|[;\t\r\n])([^;\t\r\n]*)")


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and rows of a CSV with commas, semicolons or tabs. Raises RosterError.

    Every row has every column; cells that a row lacks are "".
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RosterError(f"{path} can't be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise RosterError(f"{path} is larger than {MAX_BYTES:,} bytes")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")  # as older spreadsheets write it
    first = text.split("\n", 1)[0]
    mark = max(",;\t", key=first.count)
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), delimiter=mark))
    except csv.Error as error:
        raise RosterError(f"{path} is not a CSV file ({error})") from None
    header = [name.strip("\ufeff \t\r\n\xa0") for name in table[0]] if table else []
    empty = dict.fromkeys(header, "")
    return header, [empty | dict(zip(header, row, strict=False)) for row in table[1:] if any(row)]


def inert(text: str) -> str:
    """The text, with an apostrophe wherever a spreadsheet would begin a formula.

    A formula begins with a sign or @, also a wide one or one behind invisible characters, and goes
    on. A number or a sign alone is none.

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
