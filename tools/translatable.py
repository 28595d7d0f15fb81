"""Extract the text for translators: one .pot file per page, in _build/gettext.

    python tools/translatable.py            # in the repository's folder, after `make book`

Pages do not run: their outputs come from the cache of `make book`. The exit code is 1 if a page in
the table of contents has no .pot file, or a .pot file without the page's title.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml
from babel.messages.pofile import read_po
from jupyter_book.sphinx import build_sphinx

OUT = Path("_build") / "gettext"


def pages(root: Path) -> list[str]:
    """Every page in the table of contents."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    return [toc["root"], *re.findall(r"'file': '([^']+)'", str(toc))]


def title(page: Path) -> str:
    """The first heading of a MyST page, in its source form."""
    body = re.sub(r"\A---\n.*?\n---\n", "", page.read_text("utf8"), flags=re.DOTALL)
    heading = re.search(r"^# (.+?)\s*$", body, re.MULTILINE)
    if heading is None:
        raise ValueError(f"{page} has no title: add a line `# Title` as its first heading")
    return heading[1]


def problems(root: Path) -> list[str]:
    """A line for each page that was not extracted."""
    lines = []
    for page in pages(root):
        template = (root / OUT / page).with_suffix(".pot")
        if not template.is_file():
            lines.append(f"{page}: no {OUT / page}.pot")
            continue
        with template.open("rb") as file:
            messages = {message.id for message in read_po(file)}
        if (expected := title((root / page).with_suffix(".md"))) not in messages:
            lines.append(f"{page}: its title, {expected!r}, is not in {OUT / page}.pot")
    return lines


def extract(root: Path) -> int:
    """Run Sphinx's gettext builder with the book's settings; 0 if it went well."""
    result = build_sphinx(
        root,
        root / OUT,
        noconfig=True,
        path_config=root / "_config.yml",
        # One file per page, not one per folder.
        confoverrides={
            "external_toc_path": str(root / "_toc.yml"),
            "gettext_compact": False,
            "latex_individualpages": False,
            "nitpicky": True,
        },
        doctreedir=root / "_build" / ".doctrees-gettext",  # not interchangeable with HTML's
        builder="gettext",
        warningiserror=True,
        keep_going=True,
    )
    return result if isinstance(result, int) else 1


def main() -> int:
    root = Path.cwd()
    if failed := extract(root):
        return failed
    found = problems(root)
    print("\n".join(found) or f"{len(pages(root))} pages in {OUT}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
