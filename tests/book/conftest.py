"""The course's own site, if it has been built."""

from pathlib import Path

import pytest

from tests.book.support import ROOT
from tests.chromium import Tab
from tests.labs.python_page import write_page


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book."""
    folder = ROOT / "_build" / "html"
    if not (folder / "book/index.html").is_file():
        pytest.skip("the book is not built here (make book)")
    return folder


@pytest.fixture(scope="module")
def labs(site):
    """The site, if it was built with labs."""
    if not (site / "_static/labs/labs.js").is_file():
        pytest.skip("the book is built without labs (make labs says why)")
    return site


@pytest.fixture(scope="module")
def python(browser, labs, tmp_path_factory):
    """A page with the labs' Python; its worker starts at the first call."""
    tab = Tab(browser)
    page = tab.open(write_page(labs, tmp_path_factory.mktemp("labs")))
    yield page
    assert tab.problems == []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the built site, so that it can run alone after the build."""
    for item in items:
        if "site" in getattr(item, "fixturenames", ()):
            item.add_marker("site")
