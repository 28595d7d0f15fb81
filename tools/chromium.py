"""Headless Chromium, for what opens the built site: the book's PDF, and the tests of its pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from course_pkg.cli.doctor import BROWSERS

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


class NoBrowser(RuntimeError):
    """There is no browser, or no library to control it; the message says how to get it."""


@contextmanager
def running() -> Iterator:
    """Run headless Chromium. Playwright's sync API allows only one at a time per process."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise NoBrowser("needs Chromium, and found none (sudo apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoBrowser("needs playwright, and found none (make setup)") from None
    with sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield program
        finally:
            program.close()


def settle(page) -> None:
    """Wait until an opened page has set its mathematics."""
    page.wait_for_load_state("load")
    page.evaluate("() => window.MathJax?.startup?.promise")
