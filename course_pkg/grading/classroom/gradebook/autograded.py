"""An assignment's files in nbgrader's folders: the released notebook, and graded submissions."""

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_pkg.common.files import sync_folder
from course_pkg.grading.classroom.gradebook.graded_notebook import has_grade_id
from course_pkg.grading.classroom.release import folder_files


def difference(known: Sequence[Any], released: NotebookNode, assignment: str) -> str | None:
    """How the gradebook's notebooks and a released notebook differ; None if they do not."""
    from nbgrader.preprocessors import ClearHiddenTests, ClearMarkScheme
    from nbgrader.utils import is_grade, is_locked, is_solution, is_task

    if [notebook.name for notebook in known] != [assignment]:
        return f"the gradebook should have one notebook, {assignment}.ipynb"
    (notebook,) = known
    cells = {c.metadata.nbgrader.grade_id: c for c in released.cells if has_grade_id(c)}
    sources = {source.name: source for source in notebook.source_cells}
    if set(cells) != set(sources):
        return f"cells {', '.join(sorted(set(cells) ^ set(sources)))}"
    points = {c.name: c.max_score for c in [*notebook.grade_cells, *notebook.task_cells]}
    kinds = [
        ({cell.name for cell in rows}, is_kind)
        for rows, is_kind in (
            (notebook.grade_cells, is_grade),
            (notebook.solution_cells, is_solution),
            (notebook.task_cells, is_task),
        )
    ]
    for name, cell in cells.items():
        original = nbformat.from_dict({**cell, "source": sources[name].source})
        for clear in (ClearHiddenTests(), ClearMarkScheme()):  # what students do not see
            original, _ = clear.preprocess_cell(original, {}, 0)
        same = (
            original.source == cell.source
            and sources[name].cell_type == cell.cell_type
            and sources[name].locked == is_locked(cell)
            and points.get(name) == cell.metadata.nbgrader.get("points")
            and all((name in names) == is_kind(cell) for names, is_kind in kinds)
        )
        if not same:
            return f"the cell {name}"
    return None


def replace_folder(target: Path, files: Mapping[str, bytes], mode: int) -> None:
    """Make `target` a folder of exactly these files, by relative path, each with `mode`.

    In one step: a crash leaves the old folder, the new one, or none, never a mix. Raises ValueError
    for a path that leaves the folder; nothing was written.
    """
    for name in files:
        _inside(name)
    parent = target.parent
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f".{target.name}.*"):  # from a grader that was interrupted
        shutil.rmtree(left)
    fresh = parent / f".{target.name}.{secrets.token_hex(8)}"
    old = fresh.with_name(f"{fresh.name}.old")
    try:
        for name, data in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, data, mode)
        for folder, _, _ in os.walk(fresh):
            sync_folder(Path(folder))
        if target.exists():
            os.rename(target, old)
        os.rename(fresh, target)
        sync_folder(parent)
    finally:
        if old.exists() and not target.exists():  # interrupted between the two
            os.rename(old, target)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def course_files(folder: Path) -> dict[str, bytes]:
    """The files that are released beside the notebook, by relative path."""
    files = folder_files(folder).items()
    return {name: data for name, data in files if not name.endswith((".ipynb", ".pyc"))}


def one_name(text: str, what: str) -> str:
    """The text, if it is one folder's name. Raises ValueError if it could be a path."""
    if text in ("", ".", "..") or "/" in text or "\0" in text:
        raise ValueError(f"{text!r} is not a {what}; expected a name without path parts")
    return text


def _inside(name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} leaves the submission's folder")


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
