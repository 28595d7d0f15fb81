"""Pages in Chromium: a tab that records errors, and a check for texts with low contrast."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chromium
import pytest


@contextmanager
def running() -> Iterator:
    """Run headless Chromium; skip the test where there is none."""
    try:
        with chromium.running() as program:
            yield program
    except chromium.NoBrowser as error:
        pytest.skip(str(error))


class Tab:
    """A browser page that records errors."""

    def __init__(self, browser, width=1280, scheme="light"):
        size = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=size, offline=True, color_scheme=scheme)
        self.page = self.context.new_page()
        self.problems = []
        self.page.on("console", lambda m: m.type == "error" and self.problems.append(m.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("requestfailed", lambda request: self.problems.append(request.url))
        self.page.on("request", self._local)

    def _local(self, request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"requests {request.url}")

    def open(self, path: Path, query: str = ""):
        self.page.goto(f"file://{path.resolve()}{query}")
        chromium.settle(self.page)
        return self.page


def low_contrast(page, within: str = "main, .bd-sidebar-primary") -> list[str]:
    """Texts whose contrast with the first solid background behind them is below 4.5 (WCAG AA)."""
    return page.evaluate(CONTRAST, within)


CONTRAST = """within => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= 0.03928 ? v / 12.92
    : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const known = new Map();  // for each element, the light behind it
  const behind = e => {
    if (!e) return light('rgb(255, 255, 255)');
    if (!known.has(e)) { const c = getComputedStyle(e).backgroundColor;
      known.set(e, (rgb(c)[3] ?? 1) > 0.9 ? light(c) : behind(e.parentElement)); }
    return known.get(e); };
  const written = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  const low = [];
  const parts = [...document.querySelectorAll(within)];
  for (const e of parts.flatMap(part => [...part.querySelectorAll('*')])) {
    if (e instanceof SVGElement || !written(e) || !e.offsetParent) continue;
    if (e.closest('.headerlink, mjx-container')) continue;
    const [a, b] = [light(getComputedStyle(e).color), behind(e)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5)
      low.push(`${e.tagName}.${e.className} ${e.innerText.slice(0, 40)}`);
  }
  return low;
}"""
