"""What of a submitted notebook is run, and in which form: the same for `check`, lab and grader.

Answers and extra cells come from the student, everything else from the release. Notebooks are dicts
of JSON, and only the standard library is imported: this also runs in a browser.
"""

import ast
import copy
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from course_pkg.grading.questions.display import one_line
from course_pkg.grading.questions.registry import split
from course_pkg.grading.read_notebook import Unreadable, new_cell, new_notebook, read

Cell = dict[str, Any]
Key = str | int  # of a cell of the release: its grade id, or its number if it has none


class OtherAssignment(Unreadable):
    """It is the notebook of another assignment."""


@dataclass(frozen=True)
class Assembled:
    """The notebook to run, and remarks on what differs from the submitted one."""

    notebook: dict[str, Any]
    remarks: tuple[str, ...]


def notebook_to_run(data: bytes, released: Mapping[str, Any], assignment: str) -> Assembled:
    """What is run of the bytes of a submitted notebook. Raises Unreadable and OtherAssignment."""
    submitted = read(data)
    require_assignment(submitted, released, assignment)
    return assemble(submitted, released)


def assemble(submitted: Mapping[str, Any], released: Mapping[str, Any]) -> Assembled:
    """The released notebook with the student's answers and extra cells, in the student's order.

    If an answer cell was copied, the last copy that was edited counts, as in nbgrader; of any other
    cell, the first. The other copies stay as extra cells. A deleted cell is put back: a test cell
    as late as its neighbors allow, any other as early, and a blank before what defines its names.
    """
    cells = submitted["cells"]
    everything = _known(released)
    known = {name: cell for name, cell in everything.items() if isinstance(name, str)}
    matching = _Matching(cells, everything)
    places = {name: at for name, at in matching.places.items() if name in known}
    chosen = {_choice(cells, known[name], at): name for name, at in places.items()}
    made = []
    for index, cell in enumerate(cells):
        if index in chosen:
            original = known[chosen[index]]
            source = cell["source"] if _of(original).get("solution") else original["source"]
            made.append(_released(original, source))
        else:
            name = _grade_id(cell)
            kind = known[name]["cell_type"] if name in known else cell["cell_type"]
            made.append(new_cell(kind, cell["source"]))
    _put_back(made, list(known), known, set(known) - set(places))
    remarks = _remarks(cells, known, places, chosen)
    remarks += _about(
        [name for name in matching.lost if name in known],
        "the cell {} had lost its nbgrader metadata; it was recognized",
        "{} cells had lost their nbgrader metadata; they were recognized",
    )
    return Assembled(new_notebook(made), tuple(remarks))


def written_cells(data: bytes, released: Mapping[str, Any], assignment: str) -> dict[str, str]:
    """The texts that a student wrote, by the ids of the release's cells: what a lab imports."""
    submitted = read(data)
    require_assignment(submitted, released, assignment)
    known = _known(released)
    cells = submitted["cells"]
    places = _Matching(cells, known).places
    return {
        known[name]["id"]: cells[_choice(cells, known[name], at)]["source"]
        for name, at in places.items()
        if _of(known[name]).get("solution")
    }


def require_assignment(
    submitted: Mapping[str, Any], released: Mapping[str, Any], assignment: str
) -> None:
    """Raise OtherAssignment for the notebook of another; assignments may share some ids."""
    answers = {_grade_id(cell) for cell in released["cells"] if _of(cell).get("solution")}
    submitted_ids = {_grade_id(cell) for cell in submitted["cells"]} - {""}
    others = submitted_ids - {_grade_id(cell) for cell in released["cells"]}
    here = len(answers & submitted_ids)
    if 2 * here < len(answers) and len(others) > here:
        raise OtherAssignment(
            f"this is not the notebook of {assignment}: it has {here} of the {len(answers)} answer "
            f"cells, and {len(others)} cells of another assignment"
        )


def questions_by_cell(released: Mapping[str, Any], assignment: str) -> dict[str, str]:
    """The question of every test cell by its grade id: {"check-counts": "counts"}.

    Raises:
        ValueError: a cell doesn't check exactly one question of the assignment, not yet checked.
    """
    by_cell: dict[str, str] = {}
    for cell in released["cells"]:
        meta = _of(cell)
        if not meta.get("grade") or meta.get("solution") or cell["cell_type"] != "code":
            continue
        ids = []
        for node in ast.walk(ast.parse(cell["source"])):
            match node:
                case ast.Call(func=ast.Name(id="check"), args=[ast.Constant(value=str(text)), *_]):
                    ids.append(text)
        questions = [split(text)[1] for text in ids if split(text)[0] == assignment]
        name = _grade_id(cell)
        if len(ids) != 1 or not questions or questions[0] in by_cell.values():
            raise ValueError(
                f"the test cell {name!r} checks {ids}; expected one question of "
                f"{assignment} that no other cell checks"
            )
        by_cell[name] = questions[0]
    return by_cell


def defined_names(source: str) -> list[str]:
    """The names that code defines or assigns at its top level, in order; [] if it is no code."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return []
    names = []
    for statement in body:
        match statement:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                names.append(name)
            case ast.Assign(targets):
                names += [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(ast.Name(name)):
                names.append(name)
    return list(dict.fromkeys(names))


def _defines(source: str, name: str) -> bool:
    """Also in code with a syntax error elsewhere."""
    plain = re.escape(name)
    pattern = rf"^(?:(?:async +)?def|class) +{plain}\b|^{plain} *(?::[^=\n]+)?=(?!=)"
    return re.search(pattern, source, re.MULTILINE) is not None


def _released(cell: Mapping[str, Any], source: str) -> Cell:
    made = new_cell(cell["cell_type"], source)
    made["metadata"] = copy.deepcopy(dict(cell["metadata"]))
    if "id" in cell:
        made["id"] = cell["id"]
    return made


def _of(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    return cell["metadata"].get("nbgrader", {})


def _grade_id(cell: Mapping[str, Any]) -> str:
    return _of(cell).get("grade_id", "")


def _known(released: Mapping[str, Any]) -> dict[Key, Cell]:
    """The release's cells by grade id; by number those without, which are a student's own."""
    known = {}
    for number, cell in enumerate(released["cells"]):
        plain = {**cell, "metadata": {"nbgrader": {"solution": True}}}
        known[_grade_id(cell) or number] = cell if _grade_id(cell) else plain
    return known


class _Matching:
    """Where each cell of the release is in the submission, and which lost their grade id.

    A cell is recognized by its grade id; else by its own id; else a locked one by its text, an
    answer by a name that it defines; or, if no cell has a grade id, as the only one of its type
    between its neighbors.
    """

    def __init__(self, cells: list[Cell], known: Mapping[Key, Cell]) -> None:
        self.cells = cells
        self.known = known
        self.places: dict[Key, list[int]] = {}
        for index, cell in enumerate(cells):
            if _grade_id(cell) in known:
                self.places.setdefault(_grade_id(cell), []).append(index)
        rules = [self._by_id, self._by_content]
        if not self.places:
            rules.append(self._by_place)
        lost = [name for name in known if name not in self.places]
        for rule in rules:
            for name in lost:
                if name not in self.places and (at := list(rule(name, known[name], self._free()))):
                    self.places[name] = at
        self.lost = [name for name in lost if name in self.places]

    def _free(self) -> list[int]:
        taken = {index for at in self.places.values() for index in at}
        return [i for i, cell in enumerate(self.cells) if not _grade_id(cell) and i not in taken]

    def _of_type(self, original: Cell, indices: list[int]) -> list[int]:
        return [i for i in indices if self.cells[i]["cell_type"] == original["cell_type"]]

    def _by_id(self, name: Key, original: Cell, free: list[int]) -> Iterator[int]:
        wanted = original.get("id")
        return (i for i in free if wanted and self.cells[i]["metadata"].get("id") == wanted)

    def _by_content(self, name: Key, original: Cell, free: list[int]) -> Iterator[int]:
        same_type = self._of_type(original, free)
        if not _of(original).get("solution"):
            text = original["source"].strip()
            yield from [i for i in same_type if self.cells[i]["source"].strip() == text][:1]
        elif original["cell_type"] == "code" and (names := defined_names(original["source"])):
            yield from (i for i in same_type if _defines(self.cells[i]["source"], names[-1]))

    def _by_place(self, name: Key, original: Cell, free: list[int]) -> Iterator[int]:
        if not _of(original).get("solution"):
            return
        order = list(self.known)
        at = order.index(name)
        before = [self.places[n][-1] for n in order[:at] if n in self.places]
        after = [self.places[n][0] for n in order[at + 1 :] if n in self.places]
        first, last = max(before, default=-1), min(after, default=len(self.cells))
        between = self._of_type(original, [i for i in free if first < i < last])
        if len(between) == 1:
            yield from between


def _choice(cells: list[Cell], original: Mapping[str, Any], at: list[int]) -> int:
    if not _of(original).get("solution"):
        return at[0]
    worked = [i for i in at if cells[i]["source"].strip() != original["source"].strip()]
    return (worked or at)[-1]


def _about(names: list[str], one: str, several: str) -> list[str]:
    if len(names) < 2:
        return [one.format(name) for name in names]
    return [f"{several.format(len(names))}: {one_line(', '.join(names), 200)}"]


def _remarks(
    cells: list[Cell],
    known: Mapping[str, Cell],
    places: Mapping[str, list[int]],
    chosen: Mapping[int, str],
) -> list[str]:
    said = []
    changed = []
    for index, name in sorted(chosen.items()):
        cell = cells[index]
        original = known[name]
        if cell["cell_type"] != original["cell_type"]:
            said.append(f"the type of the cell {name} had been changed; it was restored")
        if not _of(original).get("solution") and _is_edited(cell, original):
            changed.append(name)
        if len(places[name]) > 1:
            said.append(f"the cell {name} appeared {len(places[name])} times; one of them counts")
    said += _about(
        changed,
        "the locked cell {} had been changed; the original was used",
        "{} locked cells had been changed; the originals were used",
    )
    said += _about(
        [name for name in known if name not in places],
        "the cell {} was missing; it was restored",
        "{} cells were missing; they were restored",
    )
    grade_ids = dict.fromkeys(map(_grade_id, cells))
    unknown = [repr(name) for name in grade_ids if name and name not in known]
    if unknown:
        names = one_line(", ".join(unknown), 200)
        said.append(f"the assignment has no cell {names}; kept as the student's own")
    return said


def _is_edited(cell: Mapping[str, Any], original: Mapping[str, Any]) -> bool:
    """Whether somebody changed a locked cell after some release: its checksum is nbgrader's.

    A student can forge that and gains nothing: the cell of today's release is the one that runs.
    """
    if cell["source"] == original["source"]:
        return False
    of = _of(original)
    grade = bool(of.get("grade"))
    parts = [cell["source"], original["cell_type"], grade, bool(of.get("solution"))]
    parts += [grade or bool(of.get("locked")), of["grade_id"]]
    if grade:
        parts.append(float(of.get("points", 0)))
    text = "".join(map(str, parts))
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() != _of(cell).get(
        "checksum"
    )


def _put_back(
    cells: list[Cell], order: list[str], known: Mapping[str, Cell], missing: set[str]
) -> None:
    for position, name in enumerate(order):
        if name not in missing:
            continue
        here = {_grade_id(cell): i for i, cell in enumerate(cells) if _grade_id(cell)}
        before = max([here[n] + 1 for n in order[position - 1 : position] if n in here], default=0)
        after = [here[n] for n in order[position + 1 :] if n in here][:1]
        meta = _of(known[name])
        if meta.get("grade") and not meta.get("solution"):  # a test
            before = max(before, after[0] if after else len(cells))
        elif meta.get("solution") and known[name]["cell_type"] == "code":
            names = defined_names(known[name]["source"])
            sources = ((i, cell["source"]) for i, cell in enumerate(cells[:before]))
            first = (i for i, text in sources if any(_defines(text, one) for one in names))
            before = next(first, before)
        cells.insert(before, _released(known[name], known[name]["source"]))
