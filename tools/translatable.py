"""Extract what a translator translates: one .pot file per page, in _build/gettext.

    python tools/translatable.py            # in the repository's folder, after `make book`

Pages are not run: their outputs come from the cache that `make book` filled. Ends with an error
if a page of the table of contents has no file, or a file without the page's title.
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
    """Every page that the table of contents names."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    return [toc["root"], *re.findall(r"'file': '([^']+)'", str(toc))]


def title(page: Path) -> str:
    """The first heading of a MyST page, as it is written."""
    body = re.sub(r"\A---\n.*?\n---\n", "", page.read_text("utf8"), flags=re.DOTALL)
    found = re.search(r"^# (.+?)\s*$", body, re.MULTILINE)
    if found is None:
        raise ValueError(f"{page} has no title: its first heading should be a line `# Title`")
    return found[1]


def lacking(root: Path) -> list[str]:
    """Complaints about pages that were not extracted."""
    complaints = []
    for page in pages(root):
        template = (root / OUT / page).with_suffix(".pot")
        if not template.is_file():
            complaints.append(f"{page}: no {OUT / page}.pot")
            continue
        with template.open("rb") as file:
            messages = {message.id for message in read_po(file)}
        if (expected := title((root / page).with_suffix(".md"))) not in messages:
            complaints.append(f"{page}: its title, {expected!r}, is not in {OUT / page}.pot")
    return complaints


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
        doctreedir=root / "_build" / ".doctrees-gettext",  # gettext's trees are of another kind
        builder="gettext",
        warningiserror=True,
        keep_going=True,
    )
    return result if isinstance(result, int) else 1


def main() -> int:
    root = Path.cwd()
    if failed := extract(root):
        return failed
    complaints = lacking(root)
    print("\n".join(complaints) or f"{len(pages(root))} pages in {OUT}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
