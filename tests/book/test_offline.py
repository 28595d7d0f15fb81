"""The site asks nothing of another host, and downloads as notebooks with their values."""

import re

import nbformat
import offline
import pytest


def texts(site, *suffixes):
    files = [path for path in site.rglob("*") if path.suffix in suffixes]
    files = [path for path in files if not path.name.endswith("macros.html")]  # templates
    assert files
    return {path: path.read_text("utf8", errors="replace") for path in files}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script async src='//cdn.example/x.js'></script>",
        '<link href="https://cdn.example/x.css" rel="stylesheet">',
        '<link rel="stylesheet" href="https://cdn.example/x.css">',
        '<img alt="a" src="https://cdn.example/x.png">',
        '@import url("https://cdn.example/x.css");',
        "src: url(https://cdn.example/x.woff2)",
        "script.src = 'https://cdn.example/x.js';",
        'import("https://cdn.example/x.js")',
    ],
)
def test_a_planted_load_is_found(text):
    assert len(offline.loaded_urls(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://arxiv.org/abs/2106.09685">paper</a>',
        '<script src="_static/x.js"></script><img src="../_images/a.png">',
        '<link rel="canonical" href="https://course.example/">',
        "/* see https://example.org */ background: url(data:image/svg+xml;base64,AAAA)",
    ],
)
def test_links_and_local_files_are_no_loads(text):
    assert offline.loaded_urls(text) == []


def test_pages_and_styles_load_nothing_from_elsewhere(site):
    found = {path: offline.loaded_urls(text) for path, text in texts(site, ".html", ".css").items()}
    assert {path: urls for path, urls in found.items() if urls} == {}


def test_no_script_of_a_page_names_a_cdn(site):
    hosts = ("cdn.jsdelivr.net", "unpkg.com", "cdnjs.cloudflare.com", "mybinder.org", "googleapis")
    for path, text in texts(site, ".html").items():
        assert not [host for host in hosts if host in text], path


def test_scripts_that_pages_use_are_there(site):
    for path, text in texts(site, ".html").items():
        for name in re.findall(
            r'<(?:script|link)\b[^>]*?(?:src|href)="([^"#?:]+\.(?:js|css))', text
        ):
            assert (path.parent / name).is_file(), f"{path} wants {name}"


def test_the_notebook_of_a_page_is_plain_and_has_its_values(small_book):
    notebook = nbformat.read(small_book / "_build/html/_sources/book/sample.ipynb", 4)
    nbformat.validate(notebook)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "the answer 42.00 of the word hello" in text
    assert "def twice(x):" in text and "> **Note**" in text and "See eq-sample" in text
    assert "(eq-sample)" not in text
    assert "{" not in text.replace(r"\mathcal{", "").split("$$")[0] and "(here)=" not in text
    assert any(cell.get("outputs") for cell in notebook.cells)
    assert notebook.metadata.kernelspec == {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }


def test_the_download_menu_offers_the_notebook(small_book):
    page = (small_book / "_build/html/book/sample.html").read_text()
    assert 'href="../_sources/book/sample.ipynb"' in page


def test_every_notebook_of_the_site_is_valid_and_free_of_markup(site):
    files = list((site / "_sources").rglob("*.ipynb"))
    assert files
    for file in files:
        notebook = nbformat.read(file, 4)
        nbformat.validate(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                assert "{glue" not in cell.source and "```{" not in cell.source, file
