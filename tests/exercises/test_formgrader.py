"""nbgrader's formgrader, on a class that nbgrader has graded."""

import html
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from .assignments import ROOT, SOLUTIONS, notebook


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def formgrader(graded):
    """A Jupyter server in the graded course; gives a function that fetches a path from it."""
    port = free_port()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(graded.root)}
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--port={port}",
         "--IdentityProvider.token=", "--ServerApp.jpserver_extensions={'nbgrader': True}"],
        cwd=graded.root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def fetch(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
            return reply.read().decode()

    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                fetch("/api")
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None and time.monotonic() < deadline, "no server"
                time.sleep(0.2)
        yield fetch
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
def test_formgrader_shows_the_class_its_scores_and_what_waits_for_manual_grading(
    chain, graded, formgrader
):
    assert "formgrader" in formgrader("/formgrader/").lower()
    submissions = json.loads(formgrader(f"/formgrader/api/submissions/{chain}"))
    rows = {row["student"]: row for row in submissions}
    scores = graded.scores(chain)
    by_a_person = any("BEGIN MARK SCHEME" in c.source for c in notebook(SOLUTIONS, chain).cells)
    for student in ("full", "stub"):
        assert rows[student]["autograded"]
        assert rows[student]["score"] == sum(s or 0 for s in scores[student].values())
        assert rows[student]["needs_manual_grade"] is by_a_person
    notebooks = json.loads(formgrader(f"/formgrader/api/submitted_notebooks/{chain}/{chain}"))
    page = formgrader(f"/formgrader/submissions/{notebooks[0]['id']}/")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert "check(" in text and ("BEGIN MARK SCHEME" in text) is by_a_person
