"""Code and book name each other: every module its page, every page the modules it uses."""

import re
from pathlib import Path

import api
import codelinks
from notebooks import shown_source

from tests.book.support import HEADER, ROOT

PACKAGE = ROOT / "course_pkg"
SHOWN = re.compile(r"^```\{literalinclude\} (\S+)\n((?::.*\n)*)```$", re.MULTILINE)
LINES = ("start-at", "start-after", "end-at", "end-before")


def modules() -> list[Path]:
    """The files of the package's modules; an assignment's checks belong to no page."""
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py") and "assignments" not in path.parts
    ]


def test_every_module_is_described_on_a_page():
    described = set()
    for page in (ROOT / "book" / "api").glob("*.md"):
        text = page.read_text("utf8")
        for names, without in re.findall(r"\.\. package:: (.+)\n(?:\s+:without: (.+)\n)?", text):
            for name in names.split():
                described |= set(api.public_modules(ROOT, name, set(without.split())))
    expected = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules()}
    assert described == expected


def test_shown_sources_come_first_then_imports_by_name_of_the_module_that_defines_them():
    text = HEADER + (
        "```{literalinclude} ../../course_pkg/adapters/lora.py\n:pyobject: LoRALinear\n```\n"
        "```{code-cell} ipython3\nfrom course_pkg.lm import load\nimport torch, course_pkg\n"
        "from course_pkg.adapters.accounting import lora_parameters\n"
        "from course_pkg.metrics.bleu import corpus_bleu\n"
        "import course_pkg.pages.slider\n```\n"
    )
    used = "adapters.lora adapters.accounting lm.load metrics.bleu pages.slider"
    expected = [f"course_pkg.{name}" for name in used.split()]
    assert codelinks.used_modules(ROOT, text) == expected


def test_a_shown_source_has_the_object_and_the_lines_that_the_page_names():
    missing = []
    pages = {page: page.read_text("utf8") for page in sorted((ROOT / "book").rglob("*.md"))}
    count = 0
    for page, text in pages.items():
        for found in SHOWN.finditer(text):
            count += 1
            options = dict(re.findall(r"^:([\w-]+): (.*)$", found[2], re.MULTILINE))
            whole = {name: value for name, value in options.items() if name not in LINES}
            path = (page.parent / found[1]).resolve()
            try:
                source = shown_source(path, whole)
                shown_source(path, options)
            except Exception as error:
                missing.append((page.name, found[0], repr(error)))
                continue
            lost = [options[name] for name in LINES if options.get(name, "") not in source]
            missing += [(page.name, found[0], line) for line in lost]
    assert missing == []
    opened = r"^`{3,}\{literalinclude\}"
    assert count == sum(len(re.findall(opened, text, re.M)) for text in pages.values()) > 50
