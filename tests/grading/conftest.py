"""A copy of one assignment that a test may change."""

import pytest

from course_pkg.grading.questions import registry
from tests.grading.classroom.recorded import ROOT


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of `bleu`, notebook and checks; gives a function that replaces a text in a file."""
    checks = tmp_path / "checks" / "bleu"
    notebooks = tmp_path / "solutions" / "bleu"
    for source, folder in (
        (registry.ASSIGNMENTS / "bleu", checks),
        (ROOT / "solutions" / "bleu", notebooks),
    ):
        folder.mkdir(parents=True)
        for path in source.iterdir():
            if path.suffix in (".py", ".toml", ".ipynb"):
                (folder / path.name).write_bytes(path.read_bytes())
    released = tmp_path / "exercises" / "bleu"
    released.mkdir(parents=True)
    (released / "bleu.ipynb").touch()
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "exercises.md").write_text("`bleu`, after BLEU")
    monkeypatch.setattr(registry, "ASSIGNMENTS", checks.parent)
    (tmp_path / "nbgrader_config.py").touch()
    monkeypatch.chdir(tmp_path)

    def replace(name, old, new):
        path = notebooks / name if name.endswith(".ipynb") else checks / name
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), "utf-8")

    return replace
