"""The built site with labs, and a page with the labs' Python."""

import pytest

from tests.book.conftest import pytest_collection_modifyitems, site  # noqa: F401
from tests.chromium import Tab
from tests.pages.labs.python_page import write_page


@pytest.fixture(scope="module")
def labs(site):  # noqa: F811
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
