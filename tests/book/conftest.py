"""The course's own site, if it has been built."""

from pathlib import Path

import pytest

from tests.book.support import ROOT


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book."""
    folder = ROOT / "_build" / "html"
    if not (folder / "book/index.html").is_file():
        pytest.skip("the book is not built here (make book)")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the built site, so that it can run alone after the build."""
    for item in items:
        if "site" in getattr(item, "fixturenames", ()):
            item.add_marker("site")
