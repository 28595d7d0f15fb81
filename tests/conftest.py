"""Fixtures and rules that every test shares."""

import gc
import os
import signal
import sys
import zlib

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import of transformers: no test uses the hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# What runs in the background of a shell ignores Ctrl-C, and so would the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from absl import logging as absl_logging
from hypothesis import settings

from course_pkg.lm.model_errors import ModelError
from tests.chromium import running

# rouge-score imports absl, whose log handler closes its stream, which is pytest's, as soon as
# nbgrader sets up logging.
absl_logging.get_absl_handler().python_handler.setStream(sys.__stderr__)

# An example may take longer than hypothesis allows by default when the machine is busy.
settings.register_profile("course", deadline=None)
settings.load_profile("course")

LEFT_OUT = pytest.StashKey[int]()
THIRDS = (1, 2, 3)  # of the exhaustive tests


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="run the exhaustive tests too")
    parser.addoption(
        "--third",
        type=int,
        choices=THIRDS,
        help="of the exhaustive tests, run only this third",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without the garbage collector, which takes a third of the time; later it skips this.

    Modules and tests stay until the end, so that there is nothing to free among them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def third_of(nodeid: str) -> int:
    """The third of the exhaustive tests that a test is in.

    It depends on the file and on the parameters, so that tests that share a fixture which takes
    long to make, such as a graded case, run together.
    """
    file, _, test = nodeid.partition("::")
    shared = file + "".join(test.partition("[")[1:])
    return THIRDS[zlib.crc32(shared.encode()) % len(THIRDS)]


def pytest_collection_modifyitems(config, items):
    """Leave out exhaustive tests that were not asked for; skip what this machine can't run."""
    if config.getoption("--exhaustive"):
        chosen = [config.getoption("--third")] if config.getoption("--third") else THIRDS
    else:
        chosen = ()
    kept = [
        item
        for item in items
        if not item.get_closest_marker("exhaustive") or third_of(item.nodeid) in chosen
    ]
    config.stash[LEFT_OUT] = len(items) - len(kept)
    items[:] = kept
    _skip(items, "needs_root", os.geteuid() == 0, "needs root")
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        _skip(items, "gpu", torch.cuda.is_available(), "needs a CUDA device")


def _skip(items, marker, possible, reason):
    for item in items:
        if not possible and item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_sessionfinish(session):
    """If this is a worker of pytest-xdist, report the number to the main process."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    left_out = getattr(node, "workeroutput", {}).get("left_out", 0)
    node.config.stash[LEFT_OUT] = max(left_out, node.config.stash.get(LEFT_OUT, 0))


def pytest_terminal_summary(terminalreporter, config):
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.section(
            f"{left_out} exhaustive tests left out; make test-all runs them too", sep="-"
        )


@pytest.fixture
def tiny():
    """A new random two-layer model and its byte tokenizer, which the test may change."""
    from course_pkg.lm.load import load

    return load("tiny")


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, closed after the module, because its event loop must not be forked."""
    with running() as program:
        yield program


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2 and its tokenizer, shared by all tests, which must not change them."""
    from course_pkg.lm.load import load

    try:
        return load("smollm2-135m")
    except ModelError as error:
        pytest.fail(f"the test needs SmolLM2: {error}", pytrace=False)
