"""Sites to test: a small book built here with the course's own settings, and the real one."""

import shutil
from pathlib import Path

import pytest
import yaml

from .support import EXTENSIONS, MODULE, ROOT, SAMPLE, build


@pytest.fixture(scope="session")
def small_book(tmp_path_factory) -> Path:
    """A built book of five pages, with the course's settings, extensions and style."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copytree(ROOT / "book" / "_static", folder / "book" / "_static")
    for name in ("_config.yml", "book/matplotlibrc", "book/references.bib"):
        shutil.copy(ROOT / name, folder / name)
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    extensions = config["sphinx"]["local_extensions"]
    config["sphinx"]["local_extensions"] = {name: str(EXTENSIONS) for name in extensions}
    (folder / "_config.yml").write_text(yaml.safe_dump(config))
    (folder / "course_pkg").mkdir()
    (folder / "course_pkg/__init__.py").write_text("def twice(x):\n    return 2 * x\n")
    (folder / "course_pkg/sums.py").write_text(MODULE)
    pages = {
        "index": "# Start\n",
        "sample": SAMPLE,
        "words": (
            "# Words\n\n```{glossary}\nperplexity\n  A measure of surprise.\n```\n\n"
            "| a | b |\n|---|---|\n| " + "long" * 20 + " | x |\n"
        ),
        "cited": ("# Cited\n\n{cite:p}`hu2022lora`\n\n```{bibliography}\n```\n"),
        "api": "# Code\n\n```{eval-rst}\n.. package:: course_pkg\n```\n",
    }
    for name, text in pages.items():
        (folder / "book" / f"{name}.md").write_text(text)
    toc = {
        "format": "jb-book",
        "root": "book/index",
        "chapters": [{"file": f"book/{name}"} for name in pages if name != "index"],
    }
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc))
    build(folder)
    return folder


@pytest.fixture(scope="session", params=["small", "book"])
def site(request) -> Path:
    """The folder of a built site: the small one, and the real one if `make book` has run."""
    if request.param == "small":
        return request.getfixturevalue("small_book") / "_build" / "html"
    if not (ROOT / "_build/html/book/index.html").is_file():
        pytest.skip("the book is not built here (make book)")
    return ROOT / "_build" / "html"
