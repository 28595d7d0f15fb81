"""HTML pages from the Jinja templates in course_pkg/data/html.

`page.html` is the frame of every page: it has its own style, and tells a browser to run and to
fetch nothing. Every text is escaped.
"""

from typing import Any


def html_page(template: str, **values: Any) -> str:
    """A template filled with values; a missing value is an error.

    >>> html_page("page.html", title="a < b").splitlines()[-2]
    '<h1>a &lt; b</h1>'
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("course_pkg", "data/html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)
