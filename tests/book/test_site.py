"""The built site: it asks nothing of another host, and its pages, notebooks and links are whole."""

import json
import re
from pathlib import Path

import codelinks
import costs
import nbclient
import nbformat
import offline
import pytest
import reading
import rerun
import yaml

from tests.book.support import ROOT

BOOK = ROOT / "book"
HOSTS = ("cdn.jsdelivr.net", "unpkg.com", "cdnjs.cloudflare.com", "mybinder.org", "googleapis")


@pytest.fixture(scope="module")
def html(site) -> dict[Path, str]:
    """Path → text of every page of the site; templates of the theme are left out."""
    pages = [path for path in site.rglob("*.html") if not path.name.endswith("macros.html")]
    return {path: path.read_text("utf8") for path in pages}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Name → text of every page's source."""
    paths = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in BOOK.rglob("*.md")}
    return {name: path.read_text("utf8") for name, path in paths.items()}


def test_what_a_browser_fetches_by_itself_counts_as_loaded():
    text = """<a href="https://a.org/">a</a> <link rel="canonical" href="https://a.org/">
        <script async src='//b.org/1'></script> <link href="https://b.org/2" rel="stylesheet">
        <img alt="" src="https://b.org/3"> @import url("https://b.org/4"); see https://a.org
        url(https://b.org/5) script.src = 'https://b.org/6'; import("https://b.org/7")"""
    assert [url[-1] for url in offline.loaded_urls(text)] == list("1234567")


def test_pages_and_styles_load_nothing_from_elsewhere(site, html):
    styles = {path: path.read_text("utf8", errors="replace") for path in site.rglob("*.css")}
    found = {path: offline.loaded_urls(text) for path, text in (html | styles).items()}
    assert {path: urls for path, urls in found.items() if urls} == {}
    named = {path: [host for host in HOSTS if host in text] for path, text in html.items()}
    assert {path: hosts for path, hosts in named.items() if hosts} == {}


def test_scripts_and_styles_that_pages_use_are_there(html):
    used = re.compile(r'<(?:script|link)\b[^>]*?(?:src|href)="([^"#?:]+\.(?:js|css))')
    files = {path.parent / name for path, text in html.items() for name in used.findall(text)}
    assert [file for file in files if not file.is_file()] == []


def test_next_leads_through_every_page_and_previous_back(site, html):
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    names = [toc["root"], *re.findall(r"'file': '([^']+)'", str(toc))]
    order = [site / f"{name}.html" for name in names]
    for direction, way in (("right-next", order), ("left-prev", order[::-1])):
        leads = re.compile(rf'class="{direction}"\s+href="([^"]+)"')
        for path, following in zip(way, [*way[1:], None], strict=True):
            found = leads.search(html[path])
            assert (found and (path.parent / found[1]).resolve()) == following


def test_chapters_and_pages_have_the_numbers_of_the_documents_in_order(site, html):
    def number(page):
        shown = re.search(
            r'<h1><span class="section-number">([\d.–]+)', html[site / f"{page}.html"]
        )
        return shown[1].strip(".") if shown else ""

    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    chapters = [each for part in toc["parts"] for each in part["chapters"]]
    numbered = [each for each in chapters if number(each["file"])]
    assert [number(each["file"]) for each in numbered] == [str(n) for n in range(1, 12)]
    for chapter in numbered:
        pages = [number(page["file"]) for page in chapter.get("sections", ())]
        shown = [[int(part) for part in re.split("[.–]", each)] for each in pages if each]
        assert shown == sorted(shown) and len(set(map(tuple, shown))) == len(shown)
        assert {str(first) for first, *_ in shown} <= {number(chapter["file"])}
    unnumbered = [each for each in chapters if each not in numbered]
    inside = [page["file"] for each in unnumbered for page in each.get("sections", ())]
    assert [page for page in inside if number(page)] == []
    below = re.compile(r'<h[2-6]><span class="section-number">')
    assert [str(path) for path, text in html.items() if below.search(text)] == []


def test_no_page_shows_the_source_of_a_table(site, html):
    """Markdown that a cell displays needs `markdown_format: myst` to become a table."""
    code = re.compile(r"<(script|style|pre)\b.*?</\1>", re.DOTALL)
    raw = re.compile(r"^\s*\|[^\n|]*\|[^\n|]*\|", re.MULTILINE)
    pages = {path: text for path, text in html.items() if site / "book" in path.parents}
    texts = {path: re.sub("<[^>]+>", "", code.sub("", text)) for path, text in pages.items()}
    assert texts
    assert {path: found[0] for path, text in texts.items() if (found := raw.search(text))} == {}


def test_every_notebook_to_download_is_valid_and_plain(site):
    files = list((site / "_sources").rglob("*.ipynb"))
    assert files
    for file in files:
        notebook = nbformat.read(file, 4)
        nbformat.validate(notebook)
        prose = "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        assert "{glue" not in prose and "```{" not in prose, file


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(
    "page",
    [
        "setup",
        "appendix/errata-1-adapters",
        pytest.param("adapters/lora-training", marks=pytest.mark.minutes),
    ],
)
def test_a_notebook_to_download_runs_in_an_empty_folder(site, page, tmp_path):
    """The notebook on LoRA up to its training, the others to the end."""
    notebook = nbformat.read(site / "_sources" / "book" / f"{page}.ipynb", 4)
    trains = [bool(re.search(r"^\w+ = train\(", cell.source, re.M)) for cell in notebook.cells]
    if any(trains):
        del notebook.cells[trains.index(True) :]
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    assert list(tmp_path.iterdir()) == []


def test_every_page_with_code_ends_with_links_to_the_modules_it_uses(site, html, sources):
    """Each module's name leads to the place on an API page where it is described."""
    for name, text in sources.items():
        used = codelinks.used_modules(ROOT, text)
        if not used:
            continue
        page = site / f"{name}.html"
        line = re.search(r'<p class="code-used">(.*?)</p>', html[page], re.DOTALL)
        assert line, f"{name}: no line with the modules {used}"
        links = dict(re.findall(r'href="([^"]+)" title="([\w.]+)"', line[1]))
        assert list(links.values()) == used
        for target in links:
            file, _, anchor = target.partition("#")
            described = html[(page.parent / file).resolve()]
            assert f'id="{anchor}"' in described


# ---------------------------------------------------------------- what the pages took


@pytest.fixture(scope="module")
def record(site) -> dict[str, dict]:
    """Page → what it took when it ran."""
    return json.loads((site / costs.RECORD).read_text())


def test_every_page_shows_what_it_takes_to_read_and_to_run(html, site, record, sources):
    for name, text in sources.items():
        page = html[site / f"{name}.html"]
        head = re.search(r'</h1>\s*<p class="reading-time">(.*?)</p>', page, re.DOTALL)
        foot = re.search(r'<p class="page-cost">(.*?)</p>', page, re.DOTALL)
        runs = bool(rerun.page_code(text))
        assert (name in record) is bool(foot) is runs, name
        assert not runs or costs.in_words(record[name]) in foot[1]
        taken = reading.in_words(reading.minutes(text, (ROOT / name).parent))
        assert bool(head and taken in head[1]) is reading.is_read_through(name), name


def test_the_figures_in_words():
    whole = {"seconds": 1, "bytes": 1e6, "threads": 1, "gpu": "", "gpu_bytes": 0}
    rows = [
        ({"seconds": 8.4, "bytes": 318e6}, "8 s on 1 CPU core, 318 MB of memory, no GPU"),
        (
            {"seconds": 160, "bytes": 2.34e9, "threads": 2},
            "2 min 40 s on 2 CPU cores, 2.3 GB of memory, no GPU",
        ),
        (
            {"gpu": "an H200", "gpu_bytes": 3e9},
            "1 s on 1 CPU core, 1 MB of memory, 3.0 GB of an H200",
        ),
    ]
    assert [costs.in_words(whole | cost) for cost, _ in rows] == [words for _, words in rows]
