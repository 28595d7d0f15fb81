"""The layouts of submissions: nbgrader's folders, flat notebooks, zips of Moodle and of Canvas.

What does not fit the layout is named, with the reason, and not graded. Everybody else is.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from course_pkg.grading.classroom.submissions.names import shown
from course_pkg.grading.classroom.submissions.roster import Person, Roster, same_name
from course_pkg.grading.classroom.submissions.sources import Folder, Parts, Zip

LAYOUTS = ("auto", "nbgrader", "flat", "moodle", "canvas")
NOT_DATA = {".ipynb_checkpoints", "__MACOSX", ".DS_Store", "Thumbs.db", "Icon\r"}
# Moodle: "Ada Lovelace_123_assignsubmission_file_" (before 4.1 with the last "_"), and that before
# each file's name if the zip has no folders; a person's name has no "_" there, but a file's name is
# the student's. Source: mod/assign/classes/downloader.php.
MOODLE = re.compile(
    r"(?P<name>[^_]*)_(?P<id>\d+)_assignsubmission_(?P<plugin>[a-z]+)_?(?P<file>.*)"
)
# Canvas: "lovelaceada_LATE_123_4567_name.ipynb", for anonymous grading "LATE_anon_x1y2z_4567_…";
# "…_123_text.html" for a text entry. Names are in lower case, but may have digits and "_", so that
# the student's number can be in several places. Source: lib/content_zipper.rb.
_FILE = r"(?P<number>[0-9]+_)?(?P<file>.+)"
CANVAS = re.compile(rf"(?=_(?P<late>LATE_)?(?P<id>[0-9]+)_{_FILE})")
ANONYMOUS = re.compile(rf"(?P<late>LATE_)?(?P<id>anon_\w{{5}})_{_FILE}")
ENTRIES = ("text.html", "link.html")
AGAIN = re.compile(r"(.+?)(?:-(\d+)| ?\((\d+)\))?")  # a name, and how often it was uploaded before


@dataclass(frozen=True)
class UnidentifiedSubmission:
    """One person's submission, before it has a student's id.

    Attributes:
        name: the id, full name or short name that the source gives.
        places: name and path of each file, or "" and the path of one folder of files.
        exact: whether the notebook must have the assignment's name.
        lms_id: the person's number in Moodle or Canvas.
        late: whether Canvas says so.
        skipped: why it belongs to no student.
        wrong: why it can't be graded.
        is_id: whether the name may be an id, as in a layout of your own.
    """

    name: str
    path: Parts
    places: tuple[tuple[str, Parts], ...]
    exact: bool = False
    lms_id: str = ""
    late: bool = False
    skipped: str | None = None
    wrong: str | None = None
    is_id: bool = False

    @property
    def person(self) -> Person:
        return Person(self.name if self.is_id else "", self.name, lms_id=self.lms_id)


def find(
    tree: Folder | Zip, base: Parts, assignment: str, layout: str, roster: Roster | None = None
) -> tuple[str, list[UnidentifiedSubmission], list[str]]:
    """The layout of a source, its students' folders or notebooks, and the paths that are not used.

    Args:
        layout: one of LAYOUTS; "auto" takes the one that most names fit.
        roster: decides whose a file from Canvas is if its name does not.
    """
    names = {n: folder for n, folder in tree.children(base).items() if not skipped(n)}
    odd = [n for n in names if tree.problem((*base, n))]  # a link or an unsafe path: never opened
    files = [n for n in names if n not in odd and not names[n]]
    flat = [n for n in files if stem(n) != n]
    nested = [
        n
        for n, folder in names.items()
        if folder and n not in odd and near(tree.children((*base, n)), assignment)
    ]
    moodle = [n for n in names if n not in odd and MOODLE.fullmatch(n)]
    canvas = [n for n in files if possible_owners(n)]
    if layout == "auto":
        if moodle:
            layout = "moodle"
        elif any(stem(n) != n and not n.endswith(ENTRIES) for n in canvas) and (
            2 * len([n for n in canvas if stem(n) != n]) > len(flat)
        ):
            layout = "canvas"
        else:
            layout = "flat" if len(flat) > len(nested) else "nbgrader"
    if layout == "moodle":
        submissions = list(_moodle(tree, base, moodle))
        others = [n for n in (*flat, *nested) if n not in moodle]
        expected = "names as Moodle gives them"
    elif layout == "canvas":
        files = [canvas_file(base, n, roster) for n in canvas]
        submissions = list(_group(base, [one for one in files if not one.skipped]))
        submissions += [one for one in files if one.skipped]
        others = [n for n in (*flat, *nested) if n not in canvas]
        expected = "names as Canvas gives them"
    elif layout == "flat":
        submissions = [
            UnidentifiedSubmission(
                stem(n), (*base, n), ((f"{assignment}.ipynb", (*base, n)),), is_id=True
            )
            for n in flat
        ]
        others = nested
        expected = "only <student>.ipynb"
    else:
        submissions = [_nested(tree, (*base, n), assignment) for n in nested]
        others = flat
        expected = f"only <student>/{assignment}/{assignment}.ipynb"
    if not submissions and not any(stem(n) != n for n in odd):
        return layout, [], []
    used = {
        *others,
        *odd,
        *(one.path[len(base)] for one in submissions if len(one.path) > len(base)),
    }
    used |= {name for one in submissions for name in (at[len(base)] for _, at in one.places)}
    unused = []
    for name in set(names) - used:
        if layout == "nbgrader" and names[name]:  # it may have other assignments
            unused += (f"{name}/{inner}" for inner in _astray(tree, (*base, name), assignment))
        else:
            unused.append(name)
    for name in others:
        what = "the folder" if name in nested else "the file"
        why = f"skipped {what} {shown(name)}; expected {expected}"
        submissions.append(UnidentifiedSubmission(name, (*base, name), (), skipped=why))
    for name in odd:
        submissions.append(
            UnidentifiedSubmission(stem(name), (*base, name), (), wrong=tree.problem((*base, name)))
        )
    return layout, submissions, sorted(unused)


def _astray(tree: Folder | Zip, at: Parts, assignment: str) -> list[str]:
    """What a student's folder without the assignment has: notebooks, and folders of like names."""
    begins = _bare(assignment)
    return [
        name
        for name, folder in tree.children(at).items()
        if not skipped(name) and (_bare(name).startswith(begins) if folder else stem(name) != name)
    ]


def near(names: Collection[str], assignment: str) -> list[str]:
    """The names in a student's folder that are the assignment's, or almost."""
    exact = [name for name in names if name == assignment]
    return exact or [name for name in names if _bare(assignment) in _bare_forms(name)]


def choose(names: Collection[str], assignment: str, exact: bool) -> str | None:
    """Which of the files is the assignment's notebook; None if that is not clear.

    Systems add "-1" or " (1)" to the name of a file that was uploaded again: the last one counts.

    Args:
        exact: whether the name must be the assignment's, but for that.
    """
    if f"{assignment}.ipynb" in names:
        return f"{assignment}.ipynb"
    notebooks = [name for name in names if "/" not in name and stem(name) != name]
    again = {}
    for name in notebooks:
        match = AGAIN.fullmatch(stem(name))
        same = match and (match[1] == assignment if exact else _bare(match[1]) == _bare(assignment))
        if same:
            again[name] = int((match[2] or match[3] or "0")[:9])
    if again:
        return max(again, key=lambda name: (again[name], name))
    if exact:
        return None
    if not notebooks:
        notebooks = [name for name in names if stem(name) != name]
    return notebooks[0] if len(notebooks) == 1 else None


def stem(name: str) -> str:
    """A notebook's name without `.ipynb` or `.IPYNB`; any other name unchanged."""
    return name[:-6] if name.lower().endswith(".ipynb") else name


def skipped(name: str) -> bool:
    """Whether a file or folder is one that operating systems and Jupyter add."""
    return name in NOT_DATA or name.startswith("._")


def _bare_forms(name: str) -> set[str]:
    match = AGAIN.fullmatch(stem(name))
    return {_bare(name), _bare(match[1]) if match else ""}


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", stem(name).casefold())


def _nested(tree: Folder | Zip, at: Parts, assignment: str) -> UnidentifiedSubmission:
    there = tree.children(at)
    wrong = next((tree.problem((*at, n)) for n in there if n in ("", ".", "..")), None)
    names = near(there, assignment)
    if not wrong and names != [assignment]:
        listed = ", ".join(shown("/".join((*at[-1:], n))) for n in names)
        wrong = f"found {listed}; expected {shown(at[-1])}/{assignment}/{assignment}.ipynb"
    place = (*at, assignment)
    return UnidentifiedSubmission(
        at[-1], place, (("", place),), exact=True, wrong=wrong, is_id=True
    )


def _moodle(tree: Folder | Zip, base: Parts, names: list[str]) -> Iterator[UnidentifiedSubmission]:
    folders = []
    files = []
    texts = []
    is_folder = tree.children(base)
    for name in sorted(names):
        match = MOODLE.fullmatch(name)
        at = (*base, name)
        one = UnidentifiedSubmission(match["name"], at, (("", at),), lms_id=match["id"])
        if match["plugin"] != "file":
            texts.append(replace(one, places=()))
        elif is_folder[name]:
            folders.append(one)
        else:
            files.append(replace(one, places=((match["file"], at),)))
    yield from folders
    grouped = list(_group(base, files))
    yield from grouped
    seen = {one.lms_id for one in (*folders, *grouped)}
    for one in texts:
        if one.lms_id not in seen:
            seen.add(one.lms_id)
            yield replace(one, wrong="found an online text; expected a notebook")


def _group(base: Parts, files: list[UnidentifiedSubmission]) -> Iterator[UnidentifiedSubmission]:
    """One person's files as one submission. Of two files with one name, the later number counts."""
    people: dict[tuple[str, str], list[UnidentifiedSubmission]] = {}
    for one in files:
        people.setdefault((one.lms_id, one.lms_id or one.name), []).append(one)
    for group in people.values():
        group.sort(key=lambda one: [int(n) for n in re.findall(r"\d{1,18}", one.path[-1])])
        places = {name: at for one in group for name, at in one.places}
        first = min(group, key=lambda one: one.path)
        late = any(one.late for one in group)
        yield replace(first, places=tuple(places.items()), late=late)


def possible_owners(file: str) -> list[UnidentifiedSubmission]:
    """Whose file this can be, for each place of the student's number in its name.

    Example:

        >>> [(one.name, one.lms_id) for one in possible_owners("x_77_55_901_a.ipynb")]
        [('x', '77'), ('x_77', '55')]
    """
    owners = []
    for match in (*CANVAS.finditer(file), ANONYMOUS.fullmatch(file)):
        if not match or not (match["number"] or match["file"] in ENTRIES):
            continue
        anonymous = match["id"].startswith("anon_")
        before = file[: match.start()]
        if anonymous or (before and not before.endswith("LATE")):  # a name is in lower case
            name, number = (match["id"], "") if anonymous else (before, match["id"])
            places = ((match["file"], ()),)
            late = bool(match["late"])
            owners.append(UnidentifiedSubmission(name, (), places, lms_id=number, late=late))
    return owners


def canvas_file(base: Parts, name: str, roster: Roster | None) -> UnidentifiedSubmission:
    """A file from Canvas. If it can be several people's, a complete roster decides, or nobody."""
    at = (*base, name)
    all_fits = possible_owners(name)
    known = all_fits
    if len(all_fits) > 1 and roster:
        known = [one for one in all_fits if roster.complete and _is_known(one.person, roster)]
    if len(known) != 1:
        numbers = ", ".join(one.lms_id or one.name for one in all_fits)
        why = (
            f"skipped the file {shown(name)}: it can be of any of the students {numbers}; expected "
            "Canvas's gradebook as --roster, with one of them in it who has that number and name"
        )
        return UnidentifiedSubmission(name, at, (), skipped=why)
    (one,) = known
    return replace(one, path=at, places=((one.places[0][0], at),))


def _is_known(described: Person, roster: Roster) -> bool:
    """Whether the roster has this number, or somebody without one, under this name.

    A number alone proves nothing: it may be in the name that a student gave the file.
    """
    person = roster.find(described)
    return person is not None and same_name(described, person)
