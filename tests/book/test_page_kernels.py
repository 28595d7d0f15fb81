"""Kernels of pages: forks of one process that has the libraries and the model, each on its own."""

import json
import multiprocessing
from multiprocessing import forkserver

import execution
import nbformat
import page_kernels
import psutil
import pytest
from jupyter_client.manager import AsyncKernelManager

STATE = """
import json, os, random, sys
print(json.dumps({
    "pid": os.getpid(), "group": os.getpgid(0), "folder": os.getcwd(), "random": random.random(),
    "torch": "torch" in sys.modules, "transformers": "transformers" in sys.modules,
    "pyplot": "matplotlib.pyplot" in sys.modules, "path": sys.path, "program": sys.argv[0],
    "main": __name__, "asked": os.environ.get("ASKED"),
}))
"""
needs_fork_server = pytest.mark.skipif(
    page_kernels.SERVER not in multiprocessing.get_all_start_methods(), reason="no fork server here"
)


def notebook(*cells: str) -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    return made


@pytest.fixture(scope="module", autouse=True)
def new_fork_server():
    """No fork server runs that another test has started with other libraries."""
    forkserver._forkserver._stop()  # CPython has this method for unit tests
    yield
    forkserver._forkserver._stop()


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> list[dict]:
    """What each of three kernels, two at a time, says of itself."""
    folder = tmp_path_factory.mktemp("page")
    jobs = {f"page-{i}": (notebook(STATE), str(folder), 100, False) for i in range(3)}
    found = [run.notebook.cells[0].outputs for _, run in execution.runs(jobs, 2)]
    return [json.loads(outputs[0].text) | {"expected": str(folder)} for outputs in found]


PLOT = """
import matplotlib, matplotlib.pyplot as plt
plt.plot([1, 2], color="0.5")
print(matplotlib.get_backend())
"""
MODEL = """
import torch
from course_pkg.lm.load import load
state = torch.get_rng_state()
first, second = load(), load()
assert first.model is not second.model and first.tokenizer is not second.tokenizer
assert torch.equal(state, torch.get_rng_state())
weights = second.model.state_dict()
assert all(torch.equal(value, weights[name]) for name, value in first.model.state_dict().items())
with torch.no_grad():
    first.model.model.norm.weight.zero_()
print(float(weights["model.norm.weight"].abs().sum()) > 0, load(dtype=torch.bfloat16).model.dtype)
"""


@needs_fork_server
def test_a_kernel_has_the_libraries_when_it_starts(states):
    assert all(state["torch"] and state["transformers"] and state["pyplot"] for state in states)


def outputs_of(folder, *cells: str) -> list:
    """The outputs of each cell of a page."""
    job = (notebook(*cells), str(folder), 100, False)
    [(_, run)] = execution.runs({"page": job}, 1)
    return [cell.outputs for cell in run.notebook.cells]


@needs_fork_server
def test_a_picture_is_the_same_as_in_a_kernel_that_is_started_in_the_usual_way(
    tmp_path, monkeypatch
):
    cell = f"{PLOT}print(sorted(map(str, matplotlib.rcParams.items())))"
    forked = outputs_of(tmp_path, cell)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    usual = outputs_of(tmp_path, cell)
    assert [output.output_type for output in forked[0]] == ["stream", "display_data"]
    assert forked[0][0] == usual[0][0] and page_kernels.BACKEND in forked[0][0].text
    assert forked[0][1].data.keys() == usual[0][1].data.keys()
    assert forked[0][1].data["image/png"] == usual[0][1].data["image/png"]


@needs_fork_server
def test_each_kernel_gives_out_the_model_once_and_then_loads_it(tmp_path):
    for _ in range(2):  # what one page does to the model is not seen by the next
        [[printed]] = outputs_of(tmp_path, MODEL)
        assert printed.text == "True torch.bfloat16\n"


def test_each_page_has_a_kernel_of_its_own_that_is_like_any_other(states):
    assert len({state["pid"] for state in states}) == len(states)
    assert len({state["random"] for state in states}) == len(states)
    for state in states:
        assert state["main"] == "__main__" and state["folder"] == state["expected"]
        assert state["program"].endswith("ipykernel_launcher.py")
        assert not [entry for entry in state["path"] if entry.endswith("book/_ext")]


@needs_fork_server
def test_no_kernel_is_left(states):
    assert all(state["group"] == state["pid"] for state in states)
    assert not [state["pid"] for state in states if psutil.pid_exists(state["pid"])]


@needs_fork_server
def test_a_kernel_may_start_processes(tmp_path):
    cells = [
        "import subprocess, sys\nfrom multiprocessing import Pool",
        "with Pool(2) as pool: print(pool.map(abs, [-1, 2]))",
        "child = subprocess.Popen(['sleep', '1000']); print(child.pid)\n1 / 0",
    ]
    [(_, run)] = execution.runs({"page": (notebook(*cells), str(tmp_path), 100, False)}, 1)
    assert run.notebook.cells[1].outputs[0].text == "[1, 2]\n"
    printed, error = run.notebook.cells[2].outputs
    assert error.ename == "ZeroDivisionError"
    psutil.Process(int(printed.text)).kill()


def test_without_a_fork_server_kernels_start_in_the_usual_way(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert page_kernels.manager_class() is AsyncKernelManager
