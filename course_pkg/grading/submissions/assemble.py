"""From the notebook a student handed in to the notebook that is run.

`read` gives what the hand-in holds. `assemble` puts it together with the released notebook: the
student's are the answers and the extra cells, the release's everything else. `checks` says which
cell asks what.

Chapter: appendix/for-instructors.
"""

import ast
import copy
from collections import Counter
from dataclasses import dataclass

from nbformat import NotebookNode

from ..contract.registry import split
from ..contract.texts import one_line
from .read_notebook import Unreadable, fresh, notebook, read

__all__ = ["Assembled", "Unreadable", "assemble", "checks", "read"]


@dataclass(frozen=True)
class Assembled:
    """The notebook to run, and what of the hand-in was not taken as it was."""

    notebook: NotebookNode
    remarks: tuple[str, ...]


def assemble(handed_in: NotebookNode, released: NotebookNode) -> Assembled:
    """The released notebook with the student's answers and extra cells, in the student's order.

    handed_in: from `read`. Every nbgrader cell of the release is there once, with the release's
    type and metadata. Of an answer that is there more than once, the last that was worked on is
    the answer, as in nbgrader; of any other cell, the first counts. The copies stay where they
    are, as the student's own cells: they run, as they did for the student. What was deleted is put
    back: test cells as late as their neighbors allow, everything else as early.
    """
    known = {_grade_id(cell): cell for cell in released.cells if _grade_id(cell)}
    places: dict[str, list[int]] = {}
    for index, cell in enumerate(handed_in.cells):
        if _grade_id(cell) in known:
            places.setdefault(_grade_id(cell), []).append(index)
    chosen = {_choice(handed_in, known[name], at): name for name, at in places.items()}
    remarks = _remarks(handed_in, known, places, chosen)
    cells = []
    for index, cell in enumerate(handed_in.cells):
        if index in chosen:
            original = known[chosen[index]]
            source = cell.source if _of(original).get("solution") else original.source
            cells.append(_released(original, source))
        else:
            kind = known[_grade_id(cell)].cell_type if _grade_id(cell) in known else cell.cell_type
            cells.append(fresh(kind, cell.source))
    _put_back(cells, list(known), known, set(known) - set(places))
    return Assembled(notebook(cells), tuple(remarks))


def checks(released: NotebookNode, assignment: str) -> dict[str, str]:
    """The question of every test cell by its grade id: {"check-counts": "counts"}.

    Raises ValueError for a test cell that does not call `check` once, with a text, for this
    assignment, or asks what another one asks.
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
                f"the test cell {meta.grade_id!r} asks {ids}; wanted one check of a question of "
                f"{assignment} that no other cell asks"
            )
        found[meta.grade_id] = questions[0]
    return found


def _released(cell: NotebookNode, source: str) -> NotebookNode:
    made = fresh(cell.cell_type, source)
    made.metadata = copy.deepcopy(cell.metadata)
    if "id" in cell:
        made.id = cell.id
    return made


def _of(cell: NotebookNode) -> NotebookNode:
    return cell.metadata.get("nbgrader", NotebookNode())


def _grade_id(cell: NotebookNode) -> str:
    return _of(cell).get("grade_id", "")


def _choice(handed_in: NotebookNode, original: NotebookNode, at: list[int]) -> int:
    """Which of the cells with a grade id is that cell."""
    if not _of(original).get("solution"):
        return at[0]
    worked = [i for i in at if handed_in.cells[i].source.strip() != original.source.strip()]
    return (worked or at)[-1]


def _remarks(
    handed_in: NotebookNode,
    known: dict[str, NotebookNode],
    places: dict[str, list[int]],
    chosen: dict[int, str],
) -> list[str]:
    said = []
    for index, name in sorted(chosen.items()):
        cell, original = handed_in.cells[index], known[name]
        if cell.cell_type != original.cell_type:
            said.append(f"the cell {name} had been made {cell.cell_type}; it is what it was again")
        if not _of(original).get("solution") and cell.source != original.source:
            said.append(f"the locked cell {name} had been changed; the original was used")
        if len(places[name]) > 1:
            said.append(f"the cell {name} was there {len(places[name])} times; one of them counts")
    said += [
        f"the cell {name} was missing; it was put back" for name in known if name not in places
    ]
    strange = Counter(map(_grade_id, handed_in.cells)) - Counter(
        {n: len(handed_in.cells) for n in known}
    )
    del strange[""]
    if strange:
        names = one_line(", ".join(map(repr, strange)), 200)
        said.append(f"no cell of the assignment is called {names}; taken as the student's own")
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
