"""Whose a file in a zip from Canvas is, by its name.

Chapter: appendix/for-instructors.
"""

import re
from dataclasses import replace

from .folders import Parts
from .found import Found
from .names import shown
from .roster import Person, Roster, same_name

# Canvas: "lovelaceada_LATE_123_4567_name.ipynb", for anonymous grading "LATE_anon_x1y2z_4567_…";
# "…_123_text.html" for a text entry. Names are in lower case, but may have digits and "_", so that
# the student's number can be in several places. Source: lib/content_zipper.rb.
_FILE = r"(?P<number>[0-9]+_)?(?P<file>.+)"
CANVAS = re.compile(rf"(?=_(?P<late>LATE_)?(?P<id>[0-9]+)_{_FILE})")
ANONYMOUS = re.compile(rf"(?P<late>LATE_)?(?P<id>anon_\w{{5}})_{_FILE}")
ENTRIES = ("text.html", "link.html")


def possible_owners(name: str) -> list[Found]:
    """Whose file this can be, for each place of the student's number in its name.

    >>> [(one.name, one.lms_id) for one in possible_owners("x_77_55_901_a.ipynb")]
    [('x', '77'), ('x_77', '55')]
    """
    found = []
    for match in (*CANVAS.finditer(name), ANONYMOUS.fullmatch(name)):
        if not match or not (match["number"] or match["file"] in ENTRIES):
            continue
        anonymous = match["id"].startswith("anon_")
        before = name[: match.start()]
        if anonymous or (before and not before.endswith("LATE")):  # a name is in lower case
            found.append(
                Found(
                    match["id"] if anonymous else before,
                    (),
                    ((match["file"], ()),),
                    lms_id="" if anonymous else match["id"],
                    late=bool(match["late"]),
                )
            )
    return found


def canvas_file(base: Parts, name: str, roster: Roster | None) -> Found:
    """A file from Canvas. If it can be several people's, a complete roster decides, or nobody."""
    at, all_fits = (*base, name), possible_owners(name)
    known = all_fits
    if len(all_fits) > 1 and roster:
        known = [one for one in all_fits if roster.complete and _is_known(one.person, roster)]
    if len(known) != 1:
        numbers = ", ".join(one.lms_id or one.name for one in all_fits)
        return Found(name, at, (), skipped=(
            f"skipped the file {shown(name)}: it can be of any of the students {numbers}; expected "
            "Canvas's gradebook as --roster, with one of them in it who has that number and name"
        ))  # fmt: skip
    (one,) = known
    return replace(one, path=at, places=((one.places[0][0], at),))


def _is_known(described: Person, roster: Roster) -> bool:
    """Whether the roster has this number, or somebody without one, under this name.

    A number alone proves nothing: it may be in the name that a student gave the file.
    """
    person = roster.find(described)
    return person is not None and same_name(described, person)
