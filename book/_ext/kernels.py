"""What the kernels that run the pages inherit from the build: environment variables.

MATPLOTLIBRC makes the figures of every page look alike (`book/matplotlibrc`); a reader who
downloads a page gets matplotlib's own defaults. OMP_WAIT_POLICY=passive lets torch's threads
sleep while they wait: on a machine that does other work too, threads that spin can make a
training step several times slower. A value that the caller has set is left alone.
"""

import os
from pathlib import Path

from sphinx.application import Sphinx

SETTINGS = "book/matplotlibrc"


def setup(app: Sphinx) -> dict:
    os.environ["MATPLOTLIBRC"] = str(Path(app.srcdir, SETTINGS))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
