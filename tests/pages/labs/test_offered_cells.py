"""Which cells of a page a browser gets, and the trial that they must pass."""

import gzip
import json
from pathlib import Path

import nbformat
import pytest
from lab_cells import LabCell, lab_cells
from lab_cells import offered as offered_cells
from lab_pages import sentence
from lab_trial import (
    PROCESSOR_S,
    WAITING_S,
    Trial,
    TrialError,
    course_archive,
    error_name,
    in_book,
    reason,
    tried,
)
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ABSENT = {"numpy", "matplotlib"}


def missing(module: str, name: str) -> str:
    """As if only these packages were missing."""
    root = module.partition(".")[0]
    return root if root in ABSENT else ""


def cells(*codes: str, tags: dict[int, str] | None = None) -> list[LabCell]:
    """The cells of a page with these codes; tags: by place."""
    made = [new_code_cell(code) for code in codes]
    for place, tag in (tags or {}).items():
        made[place].metadata["tags"] = [tag]
    return lab_cells(new_notebook(cells=made), missing)


def offered(page_cells: list[LabCell]) -> list[int]:
    return [cell.index for cell in offered_cells(page_cells)]


def tolerant(statement: str) -> str:
    return f"try:\n    {statement}\nexcept Exception:\n    pass"


def test_a_cell_needs_what_its_names_need():
    page_cells = cells("import numpy as np\nx = 1", "x + 1", "np.zeros(x)", "y = np.ones(2)", "y")
    assert offered(page_cells) == [1]
    assert [cell.missing for cell in page_cells] == [
        ("numpy",),
        (),
        ("numpy",),
        ("numpy",),
        ("numpy",),
    ]
    assert page_cells[0].code == tolerant("x = 1")


def test_a_name_inside_a_function_counts_and_a_parameter_does_not():
    page_cells = cells(
        "import numpy as np", "def f(): return np.pi", "f()", "def g(np): return np", "g(1)"
    )
    assert offered(page_cells) == [3, 4]


def test_a_loop_sets_its_variable_itself():
    first = "import numpy as np\nx, rows = np.ones(2)"
    assert offered(cells(first, "for x in range(2): print(x)", "x")) == [1, 2]
    assert offered(cells(first, "for x in x: print(x)")) == []
    assert offered(cells(first, "for x, y in rows: print(y)")) == []


def test_a_name_that_is_defined_again_can_be_used():
    assert offered(cells("import numpy as x", "x = 2", "x")) == [1, 2]


def test_of_hidden_cells_only_what_others_need_is_kept():
    hidden = "import math\nunused = 1\nassert math.pi > 3\nitems = []\nitems.append(math.pi)"
    page_cells = cells(hidden, "items", tags={0: "remove-cell"})
    assert [cell.shown for cell in page_cells] == [False, True]
    kept = ["import math", tolerant("items = []"), tolerant("items.append(math.pi)")]
    assert page_cells[0].code == "\n".join(kept)


def test_imports_of_one_line_are_taken_apart():
    code = "from math import pi, tau\nimport numpy, json"
    assert cells(code, "json.dumps(pi)")[0].code == "from math import pi\nimport json"


def test_cells_are_numbered_as_they_are_seen():
    page_cells = cells("a = 1", "b = a", "b", tags={1: "remove-input"})
    assert [cell.name for cell in page_cells] == ["cell 1", "cell 1", "cell 2"]


@pytest.mark.parametrize("code", ["%timeit 1", "!ls", "x = (", "import numpy"])
def test_a_page_without_a_cell_that_can_run_has_no_lab(code):
    assert offered(cells(code)) == []


def test_an_author_can_leave_a_cell_out():
    assert offered(cells("a = 1", "a", tags={0: "lab-off"})) == [1]


@pytest.fixture(scope="module")
def trial():
    made = Trial()
    yield made
    made.close()


def page(*cells_and_texts: tuple[str, str]) -> nbformat.NotebookNode:
    """An executed notebook: codes and what each has printed."""
    made = [new_markdown_cell("text")]
    for code, text in cells_and_texts:
        output = new_output("stream", name="stdout", text=text)
        made.append(new_code_cell(code, outputs=[output] if text else []))
    return new_notebook(cells=made)


def test_a_cell_that_shows_something_else_is_not_offered(trial):
    notebook = page(("print(1)", "1\n"), ("print(2)", "3\n"), ("print(4)", "4\n"))
    page_cells = tried(lab_cells(notebook, trial.missing), notebook, trial)
    assert [cell.missing for cell in page_cells] == [(), ("Jupyter",), ()]


@pytest.mark.parametrize(
    "code",
    [
        "import threading\nthreading.Thread(target=print).start()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.fork()",
        "import socket\nsocket.socket().listen()",
        "import fcntl",
        "import torch",
        "import pytest",
    ],
)
def test_the_trial_lacks_what_a_browser_lacks(trial, code):
    ((last,),) = trial.ask(cells=[{"code": code, "name": "cell 1"}])
    assert error_name(last["error"]) in ("RuntimeError", "OSError", "ModuleNotFoundError")


ON_ALL_FILES = "import os\nfor file in range(3, 30):\n    try: os.write(file, b'[]\\n')\n    "
ENDS = "ends the process that it runs in"
WAITS = "waits for something that does not come"
WRITES = "writes where its outputs are handed over"


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("import os; os._exit(0)", {}, ENDS),
        ("import os; os.kill(os.getpid(), 9)", {}, ENDS),
        ("import os; os.closerange(0, 30)", {}, ENDS),
        (ON_ALL_FILES + "except OSError: pass", {}, WRITES),
        ("while True: pass", {"processor_s": 1}, "computes for more than 1 seconds"),
        ("import time; time.sleep(10**6)", {"waiting_s": 0}, WAITS),
        ("import os; os.kill(os.getpid(), 19)", {"waiting_s": 0}, WAITS),
    ],
)
def test_a_page_that_gives_no_answer_costs_the_next_page_nothing(code, limits, reason):
    trial = Trial(**limits)
    with pytest.raises(TrialError, match=f"^{reason}$"):
        trial.ask(cells=[{"code": code, "name": "cell 1"}])
    trial.processor_s, trial.waiting_s = PROCESSOR_S, WAITING_S
    notebook = page(("print(1)", "1\n"))
    assert offered_cells(tried(lab_cells(notebook, trial.missing), notebook, trial))
    trial.process.kill()
    trial.process.wait()
    trial.close()
    assert not Path(trial.folder.name).exists()


def test_an_end_that_a_cell_survives_is_an_error_that_it_shows(trial):
    codes = ("import sys; sys.exit(3)", "quit()", "raise KeyboardInterrupt", "input()", "1")
    *ends, last = trial.ask(cells=[{"code": code, "name": "cell"} for code in codes])
    names = [error_name(outputs[-1]["error"]) for outputs in ends]
    assert names == ["SystemExit", "NameError", "KeyboardInterrupt", "EOFError"]
    assert last == [{"data": {"text/plain": "1"}}]


def test_what_a_cell_does_to_the_files_of_its_process_changes_no_answer(trial):
    code = "import os, sys\nos.write(1, b'x\\n'); sys.stdout.close(); sys.__stdout__.close()\n1"
    assert trial.ask(cells=[{"code": code, "name": "1"}]) == [[{"data": {"text/plain": "1"}}]]


def test_a_module_that_ends_its_process_is_missing(trial):
    (trial.place / "ending.py").write_text("import os; os._exit(0)")
    assert (trial.missing("ending", "x"), trial.missing("math", "pi")) == ("ending", "")


def test_a_hidden_statement_that_fails_takes_no_other_with_it(trial):
    hidden = (
        "from course_pkg.studies.scheduling.iteration_cost import recorded\n"
        "base = recorded().model.base\n"  # numpy, inside the function
        "said = 'a\\nb'\n"
        "print(base > 0)"
    )
    notebook = page((hidden, "True\n"), ("base > 0", "True\n"), ("print(said)", "a\nb\n"))
    notebook.cells[1].metadata["tags"] = ["remove-cell"]
    page_cells = tried(lab_cells(notebook, trial.missing), notebook, trial)
    assert [cell.shown for cell in page_cells] == [False, True, True]
    assert [bool(cell.missing) for cell in page_cells] == [False, True, False]


def test_an_error_that_names_a_package_is_the_reason(trial):
    code = "def f():\n    import numpy\nf()"
    ((error,),) = trial.ask(cells=[{"code": code, "name": "cell 1"}])
    assert reason([error]) == "numpy"
    assert reason([{"stream": "stdout", "text": "x"}]) == "Jupyter"


def test_the_stemmer_is_there_and_is_nltks(trial):
    from nltk.stem.porter import PorterStemmer

    words = ["running", "organization", "sky", "relational"]
    code = (
        f"from course_pkg.metrics.tokenizers import porter_stem\n[porter_stem(w) for w in {words}]"
    )
    ((shown,),) = trial.ask(cells=[{"code": code, "name": "cell 1"}])
    stem = PorterStemmer().stem
    wanted = [stem(word, to_lowercase=False) for word in words]
    assert shown["data"]["text/plain"] == repr(wanted)


def test_the_archive_is_the_same_each_time_and_holds_no_tests_and_no_solutions():
    first = course_archive()
    assert first == course_archive() and len(first) < 3_000_000
    names = json.loads(gzip.decompress(first))
    assert "course_pkg/pages/labs/cells.py" in names and "nltk/stem/porter.py" in names
    assert {name.split("/")[0] for name in names} == {"course_pkg", "lazy_loader", "nltk"}
    assert not [name for name in names if "classroom" in name or "solution" in name]


def test_outputs_of_both_sides_are_compared_as_text():
    latex = new_output("display_data", data={"text/latex": "$x$", "text/plain": "<Math>"})
    error = new_output("error", ename="KeyError", evalue="1", traceback=[])
    assert in_book(latex) == ("text/latex", "$x$") and in_book(error) == ("error", "KeyError")


def test_what_a_page_says_of_its_cells():
    able = LabCell(0, "cell 1", "", True)
    lacks = [LabCell(n, "cell", "", True, (package,)) for n, package in enumerate("abc")]
    assert sentence([able]) == "All cells can be run and edited here."
    assert sentence([able, *lacks]).endswith("the others need a, b and more.")
    assert sentence(lacks[:2]) == "Its code runs in Jupyter only: it needs a and b."
    assert sentence(lacks[:1]) == "Its code runs in Jupyter only: it needs a."
