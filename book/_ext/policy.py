"""Each page's Content Security Policy: it loads from its own site, and runs only its own scripts.

A page names the hash of every script and every handler that is written in it, so a script that
gets into it later (by a link, or by a file that a reader imports) does not run. Styles can't be
named so: many elements have a `style` of their own. A page with a lab may also start Python: from
blobs, as WebAssembly.

The policy is added when all pages are written, because only then is it known what is in them.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from execution import available_cores
from sphinx.application import Sphinx

MARK = '<meta http-equiv="Content-Security-Policy"'
START = 500  # characters within which a page that has a policy has it
HEAD = re.compile(r"<head[^>]*>")
SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL | re.IGNORECASE)
NO_PROGRAM = re.compile(r"""\bsrc\s*=|\btype\s*=\s*["']?(?:application/(?:ld\+)?json|text/x-)""")
VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"'>]+)"""
TAG = re.compile(rf"<[a-z][\w:-]*((?:\s+[^\s=>\"'/]+(?:\s*=\s*{VALUE})?)*)\s*/?>", re.IGNORECASE)
HANDLER = re.compile(r"""(?:^|\s)on[a-z]+\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
LAB = re.compile(r'\bsrc="[^"]*labs/labs\.js')
FIXED = {
    "default-src": "'none'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'self'",
}


def source(program: str) -> str:
    """How a policy names a script by its hash.

    >>> source("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digest = hashlib.sha256(program.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def scripts(page: str) -> Iterator[str]:
    """The scripts that are written in a page."""
    yield from (text for given, text in SCRIPT.findall(page) if not NO_PROGRAM.search(given))


def handlers(page: str) -> Iterator[str]:
    """What the page's `on…` attributes run."""
    for attributes in TAG.findall(page):
        found = HANDLER.findall(attributes) if "on" in attributes else ()
        yield from (html.unescape(double or single) for double, single in found)


def policy(page: str) -> str:
    """The policy of a page.

    >>> policy("<p>no script</p>").rpartition("; ")[2]
    "script-src 'self'"
    >>> "'unsafe-hashes'" in policy('<b onclick="f()">')
    True
    """
    named = sorted(set(map(source, scripts(page))))
    on = sorted(set(map(source, handlers(page))))
    allowed = ["'self'", *named, *(["'unsafe-hashes'", *on] if on else [])]
    rules = dict(FIXED)
    if LAB.search(page):
        allowed += ["blob:", "'wasm-unsafe-eval'"]
        rules["worker-src"] = "blob:"
    rules["script-src"] = " ".join(allowed)
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def add_policy(path: Path) -> None:
    """Write a page's policy at the start of its head, unless it has one."""
    with path.open(encoding="utf8") as file:
        if MARK in file.read(START):
            return
        file.seek(0)
        page = file.read()
    head = HEAD.search(page)
    if head is None:
        return
    meta = f'\n{MARK} content="{html.escape(policy(page))}">'
    path.write_text(page[: head.end()] + meta + page[head.end() :], "utf8")


def add_policies(app: Sphinx, exception: Exception | None) -> None:
    """Give every page of the site its policy."""
    if exception is not None or app.builder.format != "html":
        return
    pages = sorted(Path(app.outdir).rglob("*.html"))
    with ProcessPoolExecutor(available_cores()) as pool:
        list(pool.map(add_policy, pages, chunksize=8))


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", add_policies, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
