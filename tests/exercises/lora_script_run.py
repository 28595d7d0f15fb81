"""Runs the notebook of `lora-script` as a student would, with a part of the script replaced."""

import contextlib
import io
import os
from pathlib import Path

from course_pkg.grading.contract.folder import read_folder

from .assignments import SOLUTIONS, notebook


def run_script(folder: Path, *changes: tuple[str, str]) -> dict[str, bytes]:
    """The files of the adapter that the notebook's solution writes.

    folder: where it runs. changes: pairs of a text that the script has once, and another.
    """
    cells = [c.source for c in notebook(SOLUTIONS, "lora-script").cells if c.cell_type == "code"]
    code = "\n".join(cell for cell in cells if "check(" not in cell)
    for old, new in changes:
        assert code.count(old) == 1, (old, code.count(old))
        code = code.replace(old, new)
    before, names = Path.cwd(), {"__name__": "notebook"}
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, names)
        return read_folder(names["folder"], most=10_000_000)
    finally:
        os.chdir(before)
