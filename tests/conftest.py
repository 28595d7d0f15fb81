"""Fixtures and rules that every test shares."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported anywhere: no test uses a hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from course_pkg.lm.errors import ModelError

from .chromium import running


def pytest_collection_modifyitems(items):
    """Skip, with the reason, what needs a GPU where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none"))


@pytest.fixture
def tiny():
    """A fresh random model of two layers, and its byte tokenizer: change them at will."""
    from course_pkg.lm.load import load

    return load("tiny")


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; gone with the module, as its event loop bears no fork."""
    with running() as program:
        yield program


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2 and its tokenizer, one for all tests: leave both as you found them."""
    from course_pkg.lm.load import load

    try:
        return load("smollm2-135m")
    except ModelError as error:
        pytest.fail(f"SmolLM2 is needed here: {error}", pytrace=False)
