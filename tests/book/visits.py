"""One visit of a page in Chromium: everything that can be wrong with it, in one list."""

from pathlib import Path

from tests.chromium import Tab, low_contrast

WIDTHS = (1280, 390)
FAULTS = """() => [
  ...[...document.querySelectorAll('.math')].filter(e => !e.querySelector('mjx-container'))
    .map(e => 'not typeset: ' + e.textContent),
  ...[...document.querySelectorAll('mjx-merror')].map(e => 'TeX: ' + e.textContent),
  ...[...document.querySelectorAll('main img')].filter(e => !e.alt).map(e => 'no alt: ' + e.src),
  ...[...document.images].filter(e => e.complete && !e.naturalWidth).map(e => 'no ' + e.src),
]"""


def problems(browser, path: Path) -> list[str]:
    """What is wrong with a page, at both widths and in both color schemes.

    Errors of scripts and requests to a network; mathematics that is not typeset; images without
    alternative text; a page wider than the window; text with too little contrast.
    """
    tab = Tab(browser, WIDTHS[0])
    page = tab.open(path)
    page.add_style_tag(content="* { transition: none !important }")  # colors change at once
    found = page.evaluate(FAULTS)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found += [f"low contrast ({scheme}): {text}" for text in low_contrast(page)]
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found.append(f"wider than {width} pixels")
    tab.context.close()
    return found + tab.problems
