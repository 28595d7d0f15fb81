"""Figures of every page look alike: kernels that run pages read `book/matplotlibrc`.

matplotlib finds its settings by the environment variable MATPLOTLIBRC, which kernels
inherit from the build. A reader who downloads a page gets matplotlib's own defaults.
"""

import os
from pathlib import Path

from sphinx.application import Sphinx

SETTINGS = "book/matplotlibrc"


def setup(app: Sphinx) -> dict:
    os.environ["MATPLOTLIBRC"] = str(Path(app.srcdir, SETTINGS))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
