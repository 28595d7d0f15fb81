"""Pages of the built site, printed one by one by the browser: what `make pdf` joins."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import chromium
from matplotlib import get_data_path
from pypdf import PdfReader

# The paper's fonts come with matplotlib, so the PDF doesn't depend on the machine's own.
FONTS = {
    ("Course Serif", 400, "normal"): "STIXGeneral",
    ("Course Serif", 400, "italic"): "STIXGeneralItalic",
    ("Course Serif", 700, "normal"): "STIXGeneralBol",
    ("Course Serif", 700, "italic"): "STIXGeneralBolIta",
    ("Course Mono", 400, "normal"): "DejaVuSansMono",
    ("Course Mono", 700, "normal"): "DejaVuSansMono-Bold",
    ("Course Mono", 400, "italic"): "DejaVuSansMono-Oblique",
}

# Make a page ready: small tables stay whole; links to what is not printed become text; every part
# with a name can be a link's target: Chromium names only the places that the page itself links to.
PREPARE = """async kept => {
  document.documentElement.dataset.theme = document.documentElement.dataset.mode = 'light';
  const article = document.querySelector('article') ?? document.body;
  await window.MathJax?.typesetPromise?.([...document.querySelectorAll('.Quiz')]);
  for (const image of document.images) image.loading = 'eager';
  await Promise.all([...document.images].map(image => image.decode().catch(() => 0)));
  for (const table of article.querySelectorAll('table'))
    if (table.rows.length <= 12) table.classList.add('short-table');
  for (const link of article.querySelectorAll('a[href]')) {
    const url = new URL(link.href);
    if (url.protocol === 'file:' && !kept.includes(url.pathname)) link.removeAttribute('href');
  }
  const section = e => e.closest('section')?.id || e.id;
  const heading = e => { const copy = e.cloneNode(true);
    copy.querySelectorAll('.headerlink').forEach(link => link.remove());
    return [copy.textContent.replace(/\\s+/g, ' ').trim(), section(e)]; };
  const found = [...article.querySelectorAll('h1, h2')].map(heading);
  for (const part of article.querySelectorAll('[id]')) {
    const link = document.createElement('a');
    link.href = '#' + encodeURIComponent(part.id);
    link.style.display = 'none';
    document.body.append(link);
  }
  await document.fonts.ready;
  return found;
}"""
# Quizzes shuffle their answers: in the same way in every print.
SHUFFLE = (
    "(() => { let n = 1; Math.random = () => (n = (n * 16807) % 2147483647) / 2147483647; })()"
)
# A quiz draws itself some time after the page has loaded.
QUIZZES = "[...document.querySelectorAll('.Quiz')].every(quiz => quiz.childElementCount)"
# A character without a glyph is drawn as the box of one that is never assigned.
NO_CHINESE = """() => {
  const drawn = text => { const canvas = document.createElement('canvas');
    const ink = canvas.getContext('2d'); ink.font = '40px sans-serif'; ink.fillText(text, 9, 60);
    return canvas.toDataURL(); };
  return drawn('\\u6c49') === drawn('\\u8bed');
}"""


@dataclass(frozen=True)
class Printed:
    """One page of the site on paper.

    Attributes:
        file: its HTML file.
        pdf: the pages on paper.
        first: the number on the first of them.
        headings: the text and the section's id of its title and of each second heading.
    """

    file: Path
    pdf: PdfReader
    first: int
    headings: Sequence[tuple[str, str]] = ()


class Printer:
    """A browser tab that prints pages of a site, and knows which files are in the book."""

    def __init__(self, browser, files: Iterable[Path]):
        self.kept = [file.as_uri().removeprefix("file://") for file in files]
        self.tab = browser.new_context(offline=True, color_scheme="light").new_page()
        self.tab.emulate_media(media="print")
        self.tab.add_init_script(SHUFFLE)

    def open(self, file: Path) -> None:
        self.tab.goto(file.as_uri())
        chromium.settle(self.tab)

    def lacks_chinese(self) -> bool:
        return self.tab.evaluate(NO_CHINESE)

    def print(self, file: Path, first: int, running_head: str) -> Printed:
        """Print a page of the site; its first sheet has the number `first`."""
        self.open(file)
        self.tab.wait_for_function(QUIZZES)
        return self._sheets(file, first, running_head)

    def print_text(self, body: str, style: str, within: Path) -> Printed:
        """Print HTML text of our own in the style of the site's page `within`, without numbers."""
        self.open(within)
        self.tab.evaluate("text => { document.body.innerHTML = text; }", body)
        self.tab.add_style_tag(content=style)
        return self._sheets(within, 0, "")

    def _sheets(self, file: Path, first: int, running_head: str) -> Printed:
        self.tab.add_style_tag(content=faces() + (margins(first, running_head) if first else ""))
        headings = self.tab.evaluate(PREPARE, self.kept)
        data = self.tab.pdf(prefer_css_page_size=True, print_background=True, tagged=False)
        return Printed(file, PdfReader(io.BytesIO(data)), first, [tuple(h) for h in headings])


def faces() -> str:
    """The fonts as CSS."""
    folder = Path(get_data_path()) / "fonts" / "ttf"
    return "".join(
        f'@font-face {{ font-family: "{family}"; font-weight: {weight}; font-style: {slope}; '
        f'src: url("{(folder / name).as_uri()}.ttf"); }}\n'
        for (family, weight, slope), name in FONTS.items()
    )


def margins(first: int, running_head: str) -> str:
    r"""The margins as CSS: the page number below, and above it, after the first sheet, a head.

    >>> 'content: "A \\"B\\""' in margins(7, 'A "B"')
    True
    """
    head = running_head.replace("\\", r"\\").replace('"', r"\"")
    return f"""
@page {{ font: 9pt "Course Serif"; @bottom-center {{ content: counter(page); }}
  @top-right {{ content: "{head}"; font: italic 9pt "Course Serif"; color: #4a5260; }} }}
@page :first {{ counter-set: page {first}; @top-right {{ content: none; }} }}
"""
