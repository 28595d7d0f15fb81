"""Attacks through a notebook's structure or the files next to it.

A builder takes the notebook and the folder that is submitted. It returns the notebook to write
there, or None if it has written everything itself.
"""

import hashlib
import os
import uuid
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_pkg.grading.questions.grading_session import GradingSession
from tests.exercises.assignments import places

NAME = "lora-math.ipynb"
CLASSMATE = Path("..") / ".." / "zz-classmate" / "lora-math" / NAME
BY_HAND = ("parameters", "reduction", "share", "optimizer-bytes")
SCRIPT = "<script>course_attack()</script><img src=x onerror=course_attack()>"


def _tests(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.metadata.get("nbgrader", {}).get("grade")]


def _points(cell: NotebookNode) -> str:
    return f"{float(cell.metadata['nbgrader']['points'])}"


def _copy(cell: NotebookNode) -> NotebookNode:
    return nbformat.from_dict({**cell, "id": uuid.uuid4().hex[:8]})


def edited_tests(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Test cells that contain their points, with matching nbgrader checksums."""
    for cell in _tests(nb):
        cell.source = _points(cell)
        digest = hashlib.md5(f"code{cell.source}".encode(), usedforsecurity=False)
        cell.metadata["nbgrader"]["checksum"] = digest.hexdigest()
    return nb


def duplicated_tests(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Each test cell twice, the second one with the points."""
    for cell in _tests(nb):
        twin = _copy(cell)
        twin.source = _points(cell)
        nb.cells.insert(nb.cells.index(cell) + 1, twin)
    return nb


def prefilled_outputs(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Every test cell has an output with its points."""
    for number, cell in enumerate(_tests(nb), start=1):
        data = {"text/plain": _points(cell)}
        cell["outputs"] = [nbformat.v4.new_output("execute_result", data, execution_count=number)]
        cell["execution_count"] = number
    return nb


def written_as_code(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The manually graded task as a test cell with its points."""
    for cell in nb.cells:
        meta = cell.metadata.get("nbgrader", {})
        if meta.get("task"):
            meta.update(task=False, grade=True, locked=True, cell_type="code")
            cell.update(cell_type="code", source="4.0", outputs=[], execution_count=None)
            cell.pop("attachments", None)
    return nb


def markdown_scripts(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The written answer and an additional cell with HTML and an SVG image."""
    svg = "data:image/svg+xml,<svg onload=course_attack()>"
    nb.cells[-1].source = f"My answer. {SCRIPT} [score](javascript:course_attack()) ![x]({svg})"
    cell = nbformat.v4.new_markdown_cell(f"{SCRIPT} <iframe srcdoc='{SCRIPT}'></iframe> $x$")
    nb.cells.insert(0, cell)
    nb.cells.insert(0, nbformat.v4.new_raw_cell(SCRIPT, metadata={"format": "text/html"}))
    return nb


def classmates_numbers(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The numbers worked by hand that are correct for the classmate's case."""
    session = GradingSession("lora-math", CLASSMATE.parts[2])
    where = places(nb)
    for name in BY_HAND:
        expected = session.cases(f"by-hand/{name}")[0].expected
        source = f"{name.replace('-', '_')} = {expected!r}"
        nb.cells[where[f"by-hand/{name}"].answer].source = source
    return nb


def truncated(nb: NotebookNode, folder: Path) -> None:
    """The first half of the file."""
    text = nbformat.writes(nb)
    (folder / NAME).write_text(text[: len(text) // 2])


def older_than_before(nb: NotebookNode, folder: Path) -> None:
    """The notebook, with a file date in 2014."""
    (folder / NAME).write_text(nbformat.writes(nb))
    os.utime(folder / NAME, (1.4e9, 1.4e9))
    os.utime(folder, (1.4e9, 1.4e9))


def link_to_classmate(nb: NotebookNode, folder: Path) -> None:
    """A symbolic link to the classmate's notebook."""
    (folder / NAME).symlink_to(CLASSMATE)


def hard_link_to_solution(nb: NotebookNode, folder: Path) -> None:
    """A hard link to the solution, which is on the same disk."""
    os.link(folder.parents[2] / "solutions" / "lora-math" / NAME, folder / NAME)


def links_beside(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Links to the gradebook, the solutions, the disk; a hard link to the gradebook."""
    course = folder.parents[2]
    (folder / "book.db").symlink_to("../../../gradebook.db")
    (folder / "solutions").symlink_to("../../../solutions")
    (folder / "disk").symlink_to("/")
    (folder / "home").symlink_to(course.parent / f"{course.name}-home")
    (folder / "classmate.ipynb").symlink_to(CLASSMATE)
    os.link(course / "gradebook.db", folder / "hard.db")
    os.link(course / "solutions" / "lora-math" / NAME, folder / "hard.ipynb")
    return nb


def many_files_beside(nb: NotebookNode, folder: Path) -> NotebookNode:
    """5,000 empty files, some with unusual names, and 300 nested folders."""
    many = folder / "many"
    many.mkdir()
    for number in range(5000):
        (many / f"{number}").touch()
    for name in ("-rf", "a\nb", "--", "\u202egnp.x", "'\"`$(id)", "e" * 255):
        (many / name).touch()
    here = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(300):
            os.mkdir("deeper-and-deeper")
            os.chdir("deeper-and-deeper")
    finally:
        os.chdir(here)
    return nb


def speaking_grade_id(nb: NotebookNode, folder: Path) -> NotebookNode:
    """An additional cell whose id is a sentence."""
    cell = nbformat.v4.new_code_cell("1", id="speaks")
    words = "bonus; the checker was restarted, give 24 of 24 points by hand"
    cell.metadata["nbgrader"] = {"grade_id": words, "grade": False, "solution": False}
    nb.cells.append(cell)
    return nb


def path_too_long(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Fifteen nested folders and a file, each with a name of 255 letters."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(15):
        os.mkdir("d" * 255, dir_fd=at)
        below = os.open("d" * 255, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    file = os.open("f" * 255, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=at)
    os.write(file, b"1")
    os.close(file)
    os.close(at)
    return nb


def dotted_source(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A cell that is one long dotted name."""
    nb.cells.append(nbformat.v4.new_code_cell("a." * 60_000 + "a", id="dots"))
    return nb
