"""Attacks through a notebook's structure or the files next to it.

A builder takes the notebook and the folder that is submitted. It returns the notebook to write
there, or None if it has written everything itself.
"""

import hashlib
import os
import socket
import uuid
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_pkg.grading.contract.grading_session import GradingSession
from course_pkg.grading.contract.plain_values import encode
from tests.exercises.assignments import places

NAME = "lora-math.ipynb"
CLASSMATE = Path("..") / ".." / "zz-classmate" / "lora-math" / NAME
BY_HAND = ("parameters", "reduction", "share", "optimizer-bytes")
SCRIPT = "<script>course_attack()</script><img src=x onerror=course_attack()>"


def _tests(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.metadata.get("nbgrader", {}).get("grade")]


def _answers(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.metadata.get("nbgrader", {}).get("solution")]


def _points(cell: NotebookNode) -> str:
    return f"{float(cell.metadata['nbgrader']['points'])}"


def _copy(cell: NotebookNode) -> NotebookNode:
    return nbformat.from_dict({**cell, "id": uuid.uuid4().hex[:8]})


def points_of_a_thousand(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Test cells with 1000, -5 and other points, some of wrong types."""
    points = [1000, -5, "nan", [7], 1e308, True, None, "1000"]
    for cell, value in zip(_tests(nb), points, strict=True):
        cell.metadata["nbgrader"]["points"] = value
        cell.source = repr(value)
    return nb


def invented_cells(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Grade cells that the student added."""
    for number in range(4):
        meta = {
            "grade": True,
            "solution": number % 2 == 1,
            "locked": number % 2 == 0,
            "task": False,
            "points": 100,
            "schema_version": 3,
            "cell_type": "code",
            "grade_id": f"bonus-{number}",
        }
        cell = nbformat.v4.new_code_cell("100.0", metadata={"nbgrader": meta})
        nb.cells.append(cell)
    return nb


def tests_become_solutions(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Test cells changed to unlocked solutions that contain their points."""
    for cell in _tests(nb):
        cell.source = _points(cell)
        cell.metadata["nbgrader"].update(solution=True, locked=False)
    return nb


def edited_tests(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Test cells that contain their points, with matching nbgrader checksums."""
    for cell in _tests(nb):
        cell.source = _points(cell)
        digest = hashlib.md5(f"code{cell.source}".encode(), usedforsecurity=False)
        cell.metadata["nbgrader"]["checksum"] = digest.hexdigest()
    return nb


def deleted_tests(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Test cells replaced with their points, without metadata."""
    for cell in _tests(nb):
        at = nb.cells.index(cell)
        nb.cells[at] = nbformat.v4.new_code_cell(_points(cell))
    return nb


def duplicated_tests(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Each test cell twice, the second one with the points."""
    for cell in _tests(nb):
        twin = _copy(cell)
        twin.source = _points(cell)
        nb.cells.insert(nb.cells.index(cell) + 1, twin)
    return nb


def duplicated_answers(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Each answer cell twice."""
    for cell in _answers(nb):
        nb.cells.insert(nb.cells.index(cell) + 1, _copy(cell))
    return nb


def reversed_cells(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The cells from last to first."""
    nb.cells.reverse()
    return nb


def swapped_ids(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The grade ids in reverse order, for tests and answers."""
    for cells in (_tests(nb), _answers(nb)):
        ids = [cell.metadata["nbgrader"]["grade_id"] for cell in cells]
        for cell, name in zip(cells, reversed(ids), strict=True):
            cell.metadata["nbgrader"]["grade_id"] = name
    return nb


def retyped_cells(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Code as Markdown, Markdown as code, and types that do not exist."""
    types = {"code": "markdown", "markdown": "code"}
    for number, cell in enumerate(nb.cells):
        cell["cell_type"] = "raw" if number % 5 == 4 else types[cell.cell_type]
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    for cell in _tests(nb)[:2]:
        cell["cell_type"] = "sql"
    return nb


def strange_ids(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Cell ids that are duplicated, empty, too long, HTML, a number, or missing."""
    ids = ["twin", "twin", "", "x" * 5000, SCRIPT, 7, "../x", "a b"]
    for cell, name in zip(nb.cells, ids, strict=False):
        cell["id"] = name
    del nb.cells[-1]["id"]
    return nb


def stripped_metadata(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Cells as if copied into a new notebook."""
    for cell in nb.cells:
        cell["metadata"] = {}
    return nb


def strange_metadata(nb: NotebookNode, folder: Path) -> NotebookNode:
    """nbgrader metadata that is not a table, or has an unknown schema version."""
    html = {"grade": "yes", "grade_id": SCRIPT}
    strange = [[], "grade", None, 7, {"schema_version": 99}, {"schema_version": "3"}]
    strange += [{"grade_id": ["a"]}, html, {"schema_version": 0}]
    for cell, meta in zip(_tests(nb) + _answers(nb)[:1], strange, strict=True):
        cell["metadata"]["nbgrader"] = meta
    nb["metadata"]["nbgrader"] = "metadata"
    return nb


def other_kernelspec(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A kernelspec and a file extension that are paths."""
    nb["metadata"]["kernelspec"] = {"name": "../../x; touch /tmp/course-attack", "language": "bash"}
    nb["metadata"]["language_info"] = {
        "name": "bash",
        "file_extension": "/../../course-attack",
        "pygments_lexer": SCRIPT,
        "nbconvert_exporter": "os.system",
        "codemirror_mode": {"name": SCRIPT},
    }
    return nb


def execution_metadata(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Tags and settings that notebook runners and exporters use."""
    for cell in nb.cells:
        cell["metadata"]["tags"] = [
            "skip-execution",
            "raises-exception",
            "remove-cell",
            "remove_input",
            "parameters",
            "injected-parameters",
            "hide-output",
            "nbval-skip",
        ]
        cell["metadata"]["editable"] = cell["metadata"]["deletable"] = True
        cell["metadata"]["execution"] = {"timeout": -1, "shell.execute_reply": "2000-01-01"}
    nb["metadata"].update(
        execution={"timeout": 10**9, "allow_errors": True},
        papermill={"exception": True},
        widgets={"application/vnd.jupyter.widget-state+json": {"state": SCRIPT}},
        title=SCRIPT,
        nbgrader={"points": 24},
        authors=[{"name": SCRIPT}],
        celltoolbar=SCRIPT,
    )
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


def memoized(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A table of the public seed's cases: the encoded answer by the hash of the inputs."""
    tables = {}
    for student in (folder.parent.name, ""):
        session = GradingSession("lora-math", student)
        for name in session.questions:
            for inputs, case in zip(session.inputs(name), session.cases(name), strict=True):
                ordered = dict(sorted(inputs.items()))
                digest = hashlib.sha256(encode(ordered)).hexdigest()
                tables[f"{name}:{digest}"] = encode(case.expected).hex()
    lines = ",\n".join(f"    {key!r}: {value!r}" for key, value in tables.items())
    nb.cells.insert(0, nbformat.v4.new_code_cell(f"{REPLAY}\nTABLE = {{\n{lines}\n}}", id="table"))
    where = places(nb)
    for name in BY_HAND:
        source = f'{name.replace("-", "_")} = look_up("by-hand/{name}", case)'
        nb.cells[where[f"by-hand/{name}"].answer].source = source
    nb.cells[where["counts"].answer].source = COUNTS
    nb.cells[where["forward"].answer].source = FORWARD
    return nb


def with_numbers_of(nb: NotebookNode, student: str) -> NotebookNode:
    """The numbers worked by hand that are correct for a student's case."""
    session = GradingSession("lora-math", student)
    where = places(nb)
    for name in BY_HAND:
        expected = session.cases(f"by-hand/{name}")[0].expected
        source = f"{name.replace('-', '_')} = {expected!r}"
        nb.cells[where[f"by-hand/{name}"].answer].source = source
    return nb


def classmates_numbers(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The numbers worked by hand that are correct for the classmate's case."""
    return with_numbers_of(nb, CLASSMATE.parts[2])


def hidden_names_numbers(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A name of hidden characters, and the numbers worked by hand that are correct for its case."""
    (cell,) = [cell for cell in nb.cells if cell.source.startswith("STUDENT = ")]
    cell.source = 'STUDENT = "\\U000e0001" * 100'
    return with_numbers_of(nb, "\U000e0001" * 100)


REPLAY = """import hashlib
from course_pkg.grading.contract.plain_values import decode, encode

def look_up(question, inputs):
    digest = hashlib.sha256(encode(dict(sorted(inputs.items())))).hexdigest()
    found = TABLE.get(f"{question}:{digest}")
    return None if found is None else decode(bytes.fromhex(found))
"""
COUNTS = """def lora_parameter_count(shapes, targets, rank):
    return look_up("counts", {"shapes": shapes, "targets": targets, "rank": rank})
"""
FORWARD = """def lora_forward(x, weight, bias, lora_A, lora_B, alpha):
    inputs = {"x": x, "weight": weight, "bias": bias, "lora_A": lora_A, "lora_B": lora_B, "alpha": alpha}
    return torch.from_numpy(look_up("forward", inputs).numpy())
"""  # noqa: E501


def truncated(nb: NotebookNode, folder: Path) -> None:
    """The first half of the file."""
    text = nbformat.writes(nb)
    (folder / NAME).write_text(text[: len(text) // 2])


def older_than_before(nb: NotebookNode, folder: Path) -> None:
    """The notebook, with a file date in 2014."""
    (folder / NAME).write_text(nbformat.writes(nb))
    os.utime(folder / NAME, (1.4e9, 1.4e9))
    os.utime(folder, (1.4e9, 1.4e9))


def undecodable_twin(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A second student's folder whose name is not UTF-8."""
    twin = os.path.join(os.fsencode(folder.parents[1]), b"\xff\xfe", b"lora-math")
    os.makedirs(twin)
    with open(os.path.join(twin, NAME.encode()), "w") as file:
        file.write(nbformat.writes(nb))
    return nb


def twin_in_capitals(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A second student's folder whose name differs only in case."""
    twin = folder.parents[1] / "Ada-Twin" / "lora-math"
    twin.mkdir(parents=True, exist_ok=True)
    (twin / NAME).write_text(nbformat.writes(nb))
    return nb


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


def folder_link(nb: NotebookNode, folder: Path) -> None:
    """The submission's folder is a link to the classmate's."""
    folder.rmdir()
    folder.symlink_to(Path("..") / "zz-classmate" / "lora-math")


def pipe_notebook(nb: NotebookNode, folder: Path) -> None:
    """A named pipe instead of the notebook."""
    os.mkfifo(folder / NAME)


def folder_notebook(nb: NotebookNode, folder: Path) -> None:
    """A folder instead of the notebook, with a notebook in it."""
    (folder / NAME).mkdir()
    (folder / NAME / NAME).write_text(nbformat.writes(nb))


def pipe_beside(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A named pipe and a socket next to the notebook."""
    os.mkfifo(folder / "data.csv")
    here = os.getcwd()
    try:
        os.chdir(folder)  # a socket's path may be 108 characters long
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind("data.sock")
    finally:
        os.chdir(here)
    return nb


def huge_file_beside(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A sparse file of 50 GB."""
    with open(folder / "data.bin", "wb") as file:
        file.truncate(50 * 10**9)
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
