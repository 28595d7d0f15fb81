"""Kernels of pages: forks of one process that has torch and transformers, each on its own."""

import json
import multiprocessing

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
    "matplotlib": "matplotlib" in sys.modules, "path": sys.path, "program": sys.argv[0],
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


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> list[dict]:
    """What each of three kernels, two at a time, says of itself."""
    folder = tmp_path_factory.mktemp("page")
    jobs = {f"page-{i}": (notebook(STATE), str(folder), 100, False) for i in range(3)}
    found = [run.notebook.cells[0].outputs for _, run in execution.runs(jobs, 2)]
    return [json.loads(outputs[0].text) | {"expected": str(folder)} for outputs in found]


@needs_fork_server
def test_a_kernel_has_the_libraries_when_it_starts_but_not_matplotlib(states):
    assert all(state["torch"] and state["transformers"] for state in states)
    assert not any(state["matplotlib"] for state in states)  # it asks for the backend at import


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
