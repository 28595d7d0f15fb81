"""Folders that export names lazily: every name is there, and importing the folder loads nothing."""

import subprocess
import sys
from importlib import import_module

import pytest

FOLDERS = [
    "course_pkg.adapters",
    "course_pkg.metrics.bertscore",
    "course_pkg.metrics.judge",
    "course_pkg.metrics.perplexity",
]


@pytest.mark.parametrize("name", FOLDERS)
def test_every_exported_name_is_listed_and_is_that_of_its_module(name):
    folder = import_module(name)
    assert folder.__all__ == sorted(set(folder.__all__)) and set(folder.__all__) <= set(dir(folder))
    assert "__doc__" in dir(folder)
    for exported in folder.__all__:
        value = getattr(folder, exported)
        assert getattr(value, "__module__", name).startswith(name)
    with pytest.raises(AttributeError, match=rf"module '{name}' has no attribute 'nothing'"):
        _ = folder.nothing


def test_importing_the_folders_loads_no_module_of_theirs():
    code = f"import sys, {', '.join(FOLDERS)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
