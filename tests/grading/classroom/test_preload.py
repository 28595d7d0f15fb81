"""What the fork server imports for the kernels leaves a process that can be forked.

What is prepared before it starts can be seen in the sandboxes.
"""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

from course_pkg.grading.classroom.execution import local_executor, sandbox_views
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.runner_output import RunLimits
from course_pkg.grading.classroom.execution.sandbox_views import DEBUGGER, NOTEBOOKS, QUIET_DEBUGGER

ROOT = Path(__file__).parents[3]
LOADED = """
import importlib, json, os, sys, threading
before = dict(os.environ)
for name in sys.argv[1:]:
    importlib.import_module(name)
added = {name: text for name, text in os.environ.items() if before.get(name) != text}
print(json.dumps([threading.active_count(), sys.gettrace() is None, added]))
"""
KERNEL = """
import sys
from ipykernel.kernelapp import IPKernelApp
before = set(sys.modules)
app = IPKernelApp.instance(connection_file=sys.argv[1])
app.config.HistoryManager.enabled = False
app.initialize([])
late = sorted(set(sys.modules) - before)
print(late, file=open(sys.argv[2], "w"))
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **QUIET_DEBUGGER}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True
    )


def test_importing_the_debugger_starts_no_thread_traces_nothing_and_prints_nothing():
    """The environment that it changes is that of every kernel, preloaded or not."""
    done = run(LOADED, *NOTEBOOKS)
    assert (json.loads(done.stdout), done.stderr) == ([1, True, DEBUGGER], "")


def test_a_kernel_imports_nothing_more_when_it_starts(tmp_path):
    imports = "".join(f"import {name}\n" for name in NOTEBOOKS)
    run(imports + KERNEL, str(tmp_path / "kernel.json"), str(tmp_path / "late"))
    assert (tmp_path / "late").read_text() == "[]\n"


def test_a_model_that_the_first_run_prepares_is_in_its_sandboxes(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    course = tmp_path / "course"

    def prepare() -> None:
        (cache / "smollm2-135m").mkdir(parents=True)
        (cache / "smollm2-135m" / "manifest.json").touch()

    monkeypatch.setenv("COURSE_CACHE", str(cache))
    monkeypatch.setattr(local_executor.smollm2, "prepare", prepare)
    monkeypatch.setattr(local_executor, "ForkServer", lambda *_, **__: nullcontext())
    with local_executor.LocalExecutor(resolve("lora-script"), course, RunLimits(), 1, 0) as here:
        for view in (here._student_view, here._checker_view):
            assert cache / "smollm2-135m" in view.readable


def test_bytecode_without_a_source_is_hidden_as_an_upgrade_leaves_it(tmp_path, monkeypatch):
    for module in ("kept/here", "gone/there", "half/one", "half/two"):
        folder, name = module.split("/")
        cache = tmp_path / folder / "__pycache__"
        cache.mkdir(parents=True, exist_ok=True)
        (cache / f"{name}.cpython-311.pyc").touch()
        if name in ("here", "one"):
            (tmp_path / folder / f"{name}.py").touch()
    monkeypatch.setattr(sandbox_views, "PACKAGE", tmp_path)
    hidden = sandbox_views.student_view(resolve("lora-math"), tmp_path / "course", 1).hidden
    stale = {path.parent.name for path in hidden if path.name == "__pycache__"}
    assert stale == {"gone", "half"}
