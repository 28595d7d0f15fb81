"""Every page can be translated: gettext extracts its text, and runs nothing for that."""

import os
import subprocess
import sys

import pytest
from babel.messages.pofile import read_po

from .support import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import translatable


def extract(folder):
    environment = {**os.environ, "PYTHONPATH": str(folder), "JUPYTER_PREFER_ENV_PATH": "1"}
    command = [sys.executable, str(ROOT / "tools" / "translatable.py")]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_every_page_is_extracted_with_its_title_and_none_is_run(small_book):
    done = extract(small_book)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Executing notebook" not in done.stdout + done.stderr
    assert f"{len(list((small_book / 'book').glob('*.md')))} pages in" in done.stdout
    with (small_book / "_build/gettext/book/sample.pot").open("rb") as file:
        messages = {message.id for message in read_po(file)}
    assert "A sample of everything" in messages
    assert any("and the answer {glue:text}`answer:.2f`" in message for message in messages)
    assert not any("_page_cost" in message or "Measured when" in message for message in messages)

    template = small_book / "_build/gettext/book/sample.pot"  # and it notices what is missing
    template.write_text(template.read_text().replace("A sample of everything", "Another title"))
    (small_book / "_build/gettext/book/words.pot").unlink()
    assert [line.split(":")[0] for line in translatable.lacking(small_book)] == [
        "book/sample",
        "book/words",
    ]
