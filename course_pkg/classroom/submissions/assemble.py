"""Assemble the notebook to run: the student's answers in the released notebook.

Answers and extra cells come from the student, everything else from the release, so a changed test
or a deleted cell changes nothing.

Chapter: appendix/for-instructors.
"""

import ast
import copy
from dataclasses import dataclass

from nbformat import NotebookNode

from course_pkg.classroom.submissions.folders import Refused
from course_pkg.classroom.submissions.read_notebook import new_cell, new_notebook
from course_pkg.grading.contract.display import one_line
from course_pkg.grading.contract.registry import split


@dataclass(frozen=True)
class Assembled:
    """The notebook to run, and remarks on what differs from the submitted one."""

    notebook: NotebookNode
    remarks: tuple[str, ...]


def assemble(submitted: NotebookNode, released: NotebookNode) -> Assembled:
    """The released notebook with the student's answers and extra cells, in the student's order.

    submitted: from `read_notebook.read`. The result has every nbgrader cell of the release once,
    with the release's type and metadata. If an answer cell was copied, the last copy that was
    edited counts, as in nbgrader; of any other cell, the first. The other copies stay as extra
    cells: they run, as they did for the student. A deleted cell is put back: a test cell as late
    as its neighbors allow, any other as early.
    """
    known = {_grade_id(cell): cell for cell in released.cells if _grade_id(cell)}
    places: dict[str, list[int]] = {}
    for index, cell in enumerate(submitted.cells):
        if _grade_id(cell) in known:
            places.setdefault(_grade_id(cell), []).append(index)
    chosen = {_choice(submitted, known[name], at): name for name, at in places.items()}
    remarks = _remarks(submitted, known, places, chosen)
    cells = []
    for index, cell in enumerate(submitted.cells):
        if index in chosen:
            original = known[chosen[index]]
            source = cell.source if _of(original).get("solution") else original.source
            cells.append(_released(original, source))
        else:
            kind = known[_grade_id(cell)].cell_type if _grade_id(cell) in known else cell.cell_type
            cells.append(new_cell(kind, cell.source))
    _put_back(cells, list(known), known, set(known) - set(places))
    return Assembled(new_notebook(cells), tuple(remarks))


def require_assignment(submitted: NotebookNode, released: NotebookNode, assignment: str) -> None:
    """Raise Refused for the notebook of another assignment.

    That is one with fewer than half of the release's answer cells, and more nbgrader cells that the
    release doesn't have. Assignments may share some ids.
    """
    answers = {_grade_id(cell) for cell in released.cells if _of(cell).get("solution")}
    found = {_grade_id(cell) for cell in submitted.cells} - {""}
    others = found - {_grade_id(cell) for cell in released.cells}
    here = len(answers & found)
    if 2 * here < len(answers) and len(others) > here:
        raise Refused(
            f"this is not the notebook of {assignment}: it has {here} of the {len(answers)} answer "
            f"cells, and {len(others)} cells of another assignment"
        )


def questions_by_cell(released: NotebookNode, assignment: str) -> dict[str, str]:
    """The question of every test cell by its grade id: {"check-counts": "counts"}.

    Raises ValueError for a test cell that does not call `check` once, with a literal id of this
    assignment, or checks the same question as another cell.
    """
    found: dict[str, str] = {}
    for cell in released.cells:
        meta = _of(cell)
        if not meta.get("grade") or meta.get("solution") or cell.cell_type != "code":
            continue
        ids = []
        for node in ast.walk(ast.parse(cell.source)):
            match node:
                case ast.Call(func=ast.Name(id="check"), args=[ast.Constant(value=str(text)), *_]):
                    ids.append(text)
        questions = [split(text)[1] for text in ids if split(text)[0] == assignment]
        if len(ids) != 1 or not questions or questions[0] in found.values():
            raise ValueError(
                f"the test cell {meta.grade_id!r} checks {ids}; expected one question of "
                f"{assignment} that no other cell checks"
            )
        found[meta.grade_id] = questions[0]
    return found


def _released(cell: NotebookNode, source: str) -> NotebookNode:
    made = new_cell(cell.cell_type, source)
    made.metadata = copy.deepcopy(cell.metadata)
    if "id" in cell:
        made.id = cell.id
    return made


def _of(cell: NotebookNode) -> NotebookNode:
    return cell.metadata.get("nbgrader", NotebookNode())


def _grade_id(cell: NotebookNode) -> str:
    return _of(cell).get("grade_id", "")


def _choice(submitted: NotebookNode, original: NotebookNode, at: list[int]) -> int:
    """Which of the cells with the same grade id counts."""
    if not _of(original).get("solution"):
        return at[0]
    worked = [i for i in at if submitted.cells[i].source.strip() != original.source.strip()]
    return (worked or at)[-1]


def _about(names: list[str], one: str, several: str) -> list[str]:
    """One remark about the cells of these names; none if there are none."""
    if len(names) < 2:
        return [one.format(name) for name in names]
    return [f"{several.format(len(names))}: {one_line(', '.join(names), 200)}"]


def _remarks(
    submitted: NotebookNode,
    known: dict[str, NotebookNode],
    places: dict[str, list[int]],
    chosen: dict[int, str],
) -> list[str]:
    said = []
    changed = []
    for index, name in sorted(chosen.items()):
        cell = submitted.cells[index]
        original = known[name]
        if cell.cell_type != original.cell_type:
            said.append(f"the type of the cell {name} had been changed; it was restored")
        if not _of(original).get("solution") and cell.source != original.source:
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
    found = dict.fromkeys(map(_grade_id, submitted.cells))
    unknown = [repr(name) for name in found if name and name not in known]
    if unknown:
        names = one_line(", ".join(unknown), 200)
        said.append(f"the assignment has no cell {names}; kept as the student's own")
    return said


def _put_back(
    cells: list[NotebookNode], order: list[str], known: dict[str, NotebookNode], missing: set[str]
) -> None:
    for position, name in enumerate(order):
        if name not in missing:
            continue
        here = {_grade_id(cell): i for i, cell in enumerate(cells) if _grade_id(cell)}
        before = max([here[n] + 1 for n in order[position - 1 : position] if n in here], default=0)
        after = [here[n] for n in order[position + 1 :] if n in here][:1]
        meta = _of(known[name])
        test = meta.get("grade") and not meta.get("solution")
        late = (after[0] if after else len(cells)) if test else before
        cells.insert(max(before, late), _released(known[name], known[name].source))
