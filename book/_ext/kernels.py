"""What the kernels that run the pages inherit from the build: environment variables.

MATPLOTLIBRC makes the figures of every page look alike (`book/matplotlibrc`); a reader who
downloads a page gets matplotlib's own defaults. OMP_WAIT_POLICY says what torch's threads do
while they wait for one another. As they are, they spin, which on a machine that has nothing else
to do makes a training step a third faster and a generated token twice as fast as with threads
that sleep. Beside another program's work, which they then keep from the processor and wait for
all the same, they are slower by a half and more: so there they sleep. A value that the caller has
set is left alone.
"""

import os
from pathlib import Path

import psutil
from sphinx.application import Sphinx

SETTINGS = "book/matplotlibrc"
POLICY = "OMP_WAIT_POLICY"
LOOK_S = 0.5  # for so long, while this process does nothing
BUSY = 25  # percent of all processors together: half of one, of two


def choose_policy() -> None:
    """Let the kernels' threads sleep while they wait, if the machine is at other work."""
    if POLICY not in os.environ and psutil.cpu_percent(LOOK_S) > BUSY:
        os.environ[POLICY] = "passive"


def setup(app: Sphinx) -> dict:
    os.environ["MATPLOTLIBRC"] = str(Path(app.srcdir, SETTINGS))
    choose_policy()
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
