"""The layouts of submissions: nbgrader's folders, flat notebooks, zips of Moodle and of Canvas.

`find` gives one `Found` for each person in a source. What does not fit the layout is one too, with
the reason: it is named and not graded, and everybody else is.

Chapter: appendix/for-instructors.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from .canvas_files import ENTRIES, canvas_file, possible_owners
from .folders import Folder, Parts
from .found import Found
from .names import shown
from .roster import Roster
from .zips import Zip

LAYOUTS = ("auto", "nbgrader", "flat", "moodle", "canvas")
NOT_DATA = {".ipynb_checkpoints", "__MACOSX", ".DS_Store", "Thumbs.db", "Icon\r"}
# Moodle: "Ada Lovelace_123_assignsubmission_file_" (before 4.1 with the last "_"), and that before
# each file's name if the zip has no folders; a person's name has no "_" there, but a file's name is
# the student's. Source: mod/assign/classes/downloader.php.
MOODLE = re.compile(
    r"(?P<name>[^_]*)_(?P<id>\d+)_assignsubmission_(?P<plugin>[a-z]+)_?(?P<file>.*)"
)


def find(
    tree: Folder | Zip, base: Parts, assignment: str, layout: str, roster: Roster | None = None
) -> tuple[str, list[Found]]:
    """The layout of a source, and what it holds: students' folders, or notebooks.

    layout: one of LAYOUTS; "auto" takes the one that most names fit. roster: decides
    whose a file from Canvas is if its name does not. [] if nothing fits.
    """
    names = {n: folder for n, folder in tree.children(base).items() if not skipped(n)}
    odd = [n for n in names if tree.problem((*base, n))]  # a link or an unsafe path: never opened
    files = [n for n in names if n not in odd and not names[n]]
    flat = [n for n in files if stem(n) != n]
    nested = [
        n for n, folder in names.items()
        if folder and n not in odd and near(tree.children((*base, n)), assignment)
    ]  # fmt: skip
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
        found = list(_moodle(tree, base, moodle))
        others = [n for n in (*flat, *nested) if n not in moodle]
        expected = "names as Moodle gives them"
    elif layout == "canvas":
        files = [canvas_file(base, n, roster) for n in canvas]
        found = list(_group(base, [one for one in files if not one.skipped]))
        found += [one for one in files if one.skipped]
        others = [n for n in (*flat, *nested) if n not in canvas]
        expected = "names as Canvas gives them"
    elif layout == "flat":
        found = [_flat((*base, n), assignment) for n in flat]
        others, expected = nested, "only <student>.ipynb"
    else:
        found = [_nested(tree, (*base, n), assignment) for n in nested]
        others, expected = flat, f"only <student>/{assignment}/{assignment}.ipynb"
    if not found and not any(stem(n) != n for n in odd):
        return layout, []
    for name in others:
        what = "the folder" if name in nested else "the file"
        why = f"skipped {what} {shown(name)}; expected {expected}"
        found.append(Found(name, (*base, name), (), skipped=why))
    for name in odd:
        found.append(Found(stem(name), (*base, name), (), wrong=tree.problem((*base, name))))
    return layout, found


def near(names: Collection[str], assignment: str) -> list[str]:
    """The names in a student's folder that are the assignment's, or almost."""
    exact = [name for name in names if name == assignment]
    return exact or [name for name in names if _bare(name) == _bare(assignment)]


def choose(names: Collection[str], assignment: str, exact: bool) -> str | None:
    """Which of the files is the assignment's notebook; None if that is not clear.

    Systems add "-1" or " (1)" to the name of a file that was uploaded again: the last one counts.

    >>> choose(["a.ipynb", "lora-math-1.ipynb", "lora-math.ipynb"], "lora-math", exact=False)
    'lora-math.ipynb'
    >>> choose(["a.ipynb", "lora-math-1.ipynb", "lora-math-2.ipynb"], "lora-math", exact=False)
    'lora-math-2.ipynb'
    >>> choose(["mine.ipynb", "data.csv"], "lora-math", exact=False)
    'mine.ipynb'
    >>> choose(["work/mine.ipynb", "data.csv"], "lora-math", exact=False)
    'work/mine.ipynb'
    """
    if f"{assignment}.ipynb" in names:
        return f"{assignment}.ipynb"
    notebooks = [name for name in names if "/" not in name and stem(name) != name]
    again = {}
    for name in notebooks:
        match = re.fullmatch(r"(.+?)(?:-(\d+)| ?\((\d+)\))?", stem(name))
        if match and _bare(match[1]) == _bare(assignment):
            again[name] = int((match[2] or match[3] or "0")[:9])
    if exact:
        return None
    if again:
        return max(again, key=lambda name: (again[name], name))
    if not notebooks:
        notebooks = [name for name in names if stem(name) != name]
    return notebooks[0] if len(notebooks) == 1 else None


def stem(name: str) -> str:
    """A notebook's name without `.ipynb` or `.IPYNB`; any other name unchanged."""
    return name[:-6] if name.lower().endswith(".ipynb") else name


def skipped(name: str) -> bool:
    """Whether a file or folder is one that operating systems and Jupyter add."""
    return name in NOT_DATA or name.startswith("._")


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", stem(name).casefold())


def _nested(tree: Folder | Zip, at: Parts, assignment: str) -> Found:
    """A student's folder in nbgrader's layout."""
    there = tree.children(at)
    wrong = next((tree.problem((*at, n)) for n in there if n in ("", ".", "..")), None)
    names = near(there, assignment)
    if not wrong and names != [assignment]:
        found = ", ".join(shown("/".join((*at[-1:], n))) for n in names)
        wrong = f"found {found}; expected {shown(at[-1])}/{assignment}/{assignment}.ipynb"
    place = (*at, assignment)
    return Found(at[-1], place, (("", place),), exact=True, wrong=wrong, is_id=True)


def _flat(at: Parts, assignment: str) -> Found:
    """A student's notebook in a flat folder."""
    return Found(stem(at[-1]), at, ((f"{assignment}.ipynb", at),), is_id=True)


def _moodle(tree: Folder | Zip, base: Parts, names: list[str]) -> Iterator[Found]:
    folders, files, texts = {}, [], []
    is_folder = tree.children(base)
    for name in sorted(names):
        match, at = MOODLE.fullmatch(name), (*base, name)
        one = Found(match["name"], at, (("", at),), lms_id=match["id"])
        if match["plugin"] != "file":
            texts.append(replace(one, places=()))
        elif is_folder[name]:
            folders[match["id"]] = one
        else:
            files.append(replace(one, places=((match["file"], at),)))
    yield from folders.values()
    grouped = list(_group(base, files))
    yield from grouped
    seen = {*folders, *(one.lms_id for one in grouped)}
    for one in texts:
        if one.lms_id not in seen:
            seen.add(one.lms_id)
            yield replace(one, wrong="found an online text; expected a notebook")


def _group(base: Parts, files: list[Found]) -> Iterator[Found]:
    """One person's files as one submission. Of two files with one name, the later number counts."""
    people: dict[tuple[str, str], list[Found]] = {}
    for one in files:
        people.setdefault((one.lms_id, one.lms_id or one.name), []).append(one)
    for group in people.values():
        group.sort(key=lambda one: [int(n) for n in re.findall(r"\d{1,18}", one.path[-1])])
        places = {name: at for one in group for name, at in one.places}
        first = min(group, key=lambda one: one.path)
        late = any(one.late for one in group)
        yield replace(first, places=tuple(places.items()), late=late)
