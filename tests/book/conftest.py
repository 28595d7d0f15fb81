"""The course's own site, if it has been built from what is here."""

from pathlib import Path

import faults
import pytest

from tests.book.support import ROOT


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book, if it is whole and up to date."""
    folder = ROOT / "_build" / "html"
    finished = folder / faults.FINISHED
    if not finished.is_file():
        pytest.skip("the book is not built here, or its build was interrupted (make book)")
    if edited := edited_since(finished.stat().st_mtime):
        pytest.skip(f"the book was built before {edited} changed (make book)")
    return folder


def edited_since(time: float) -> str:
    """A source of the book that is newer; "" if none is."""
    files = [ROOT / name for name in ("_toc.yml", "_config.yml")]
    for name in ("book", "course_pkg"):
        files += [path for path in (ROOT / name).rglob("*") if "__pycache__" not in path.parts]
    newer = [path for path in files if path.is_file() and path.stat().st_mtime > time]
    return str(newer[0].relative_to(ROOT)) if newer else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the built site, so that it can run alone after the build."""
    for item in items:
        if "site" in getattr(item, "fixturenames", ()):
            item.add_marker("site")
