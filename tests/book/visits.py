"""One visit of a page in Chromium: everything that can be wrong with it, in one list."""

from pathlib import Path

from tests.chromium import Tab, low_contrast

WIDTHS = (1280, 390)
HEIGHT = 900
FAULTS = """() => [
  ...[...document.querySelectorAll('.math')].filter(e => !e.querySelector('mjx-container'))
    .map(e => 'not typeset: ' + e.textContent),
  ...[...document.querySelectorAll('mjx-merror')].map(e => 'TeX: ' + e.textContent),
  ...[...document.querySelectorAll('main img')].filter(e => !e.alt).map(e => 'no alt: ' + e.src),
  ...[...document.images].filter(e => e.complete && !e.naturalWidth).map(e => 'no ' + e.src),
]"""
PHONE_FAULTS = """([smallest, formula]) => {
  const rendered = [...document.querySelectorAll('main svg')].filter(e => e.checkVisibility());
  const natural = e => { const own = e.style.maxWidth; e.style.maxWidth = 'none';
    const width = e.getBoundingClientRect().width; e.style.maxWidth = own; return width; };
  const math = e => e.closest('.math')?.textContent.trim().slice(0, 60)
    || e.closest('mjx-container').textContent.slice(0, 60);
  const displayed = rendered.filter(e => e.parentElement.matches('mjx-container[display=true]'));
  const wide = displayed.filter(e => {
    const box = e.parentElement, width = e.getBoundingClientRect().width;
    return box.scrollWidth > box.clientWidth + 1 || width < formula * natural(e); });
  const drawn = rendered.filter(e => e.matches('.figure-svg, .course-slider svg'));
  const sizes = e => {  // matplotlib draws letters as shapes, 100 units to the font's size
    const scale = e.getBoundingClientRect().width / e.viewBox.baseVal.width;
    const shapes = [...e.querySelectorAll('g')].map(g =>
      /scale\\(([\\d.]+) -/.exec(g.getAttribute('transform') ?? '')).filter(Boolean);
    const texts = [...e.querySelectorAll('text')]
      .map(t => parseFloat(getComputedStyle(t).fontSize));
    return [...shapes.map(found => 100 * found[1]), ...texts].map(size => size * scale); };
  return [
    ...wide.map(e => `formula too wide for a phone: ${math(e)}`),
    ...drawn.filter(e => Math.min(...sizes(e)) < smallest).map(e =>
      `text of ${Math.min(...sizes(e)).toFixed(1)} pixels on a phone: `
      + `${(e.ariaLabel ?? e.closest('[aria-label]')?.ariaLabel ?? '').slice(0, 60)}`),
  ];
}"""
THEME = "scheme => (document.documentElement.dataset.theme ?? scheme) === scheme"
SMALLEST_TEXT = 7.5  # pixels, in figures on a phone
FORMULA_SCALE = 0.7  # how far a displayed formula may shrink to fit a phone


def problems(browser, *paths: Path) -> dict[Path, list[str]]:
    """The pages with which something is wrong, and what; visited one after the other in one tab.

    Errors of scripts and requests to a network; mathematics that is not typeset; images without
    alternative text; a page wider than the window; text with too little contrast; formulas too
    wide and figures with letters too small for a phone. Each page is seen at both widths and in
    both color schemes.
    """
    tab = Tab(browser, WIDTHS[0])
    found = {path: visit(tab, path) for path in paths}
    tab.context.close()
    return {path: faults for path, faults in found.items() if faults}


def visit(tab: Tab, path: Path) -> list[str]:
    """What is wrong with one page. tab: as wide as the first width, and light."""
    page = tab.open(path)
    page.add_style_tag(content="* { transition: none !important }")  # colors change at once
    found = page.evaluate(FAULTS)
    found += [f"low contrast (light): {text}" for text in low_contrast(page)]
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(THEME, arg="dark")  # the theme's script answers a little later
    found += [f"low contrast (dark): {text}" for text in low_contrast(page)]
    for width in WIDTHS:
        if width != WIDTHS[0]:
            page.set_viewport_size({"width": width, "height": HEIGHT})
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found.append(f"wider than {width} pixels")
    found += page.evaluate(PHONE_FAULTS, [SMALLEST_TEXT, FORMULA_SCALE])
    found += tab.problems
    page.goto("about:blank")  # what it still loads is no fault of the next page
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
    tab.problems.clear()
    return found
