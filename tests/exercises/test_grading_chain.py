"""A class graded by stock nbgrader, shown by formgrader, and graded by `course grade`."""

import csv
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
from offline import loaded_urls

from course_pkg.classroom.results.record import State
from course_pkg.grading.contract import registry

from .assignments import EXERCISES, ROOT, SOLUTIONS, artifacts, notebook, places

pytestmark = pytest.mark.slow
EXTENSION = "--ServerApp.jpserver_extensions={'nbgrader': True}"


def cell_name(assignment, place):
    """The grade_id of a question's test cell."""
    return notebook(SOLUTIONS, assignment).cells[place.check].metadata["nbgrader"]["grade_id"]


def questions_of(assignment):
    """Each question with its place in the notebook."""
    where = places(notebook(SOLUTIONS, assignment))
    return [(q, where[q.name]) for q in registry.load(assignment).questions.values()]


def test_the_committed_release_is_a_fresh_one(chain, graded):
    fresh, committed = (
        {path.name: path.read_bytes() for path in (folder / chain).iterdir() if path.is_file()}
        for folder in (graded.root / "exercises", EXERCISES)
    )
    assert fresh == committed


def test_nbgrader_gives_the_solution_everything_the_stub_nothing_and_takes_the_exact_points(
    chain, graded, rounds
):
    scores = graded.scores(chain)
    for question, place in questions_of(chain):
        name = cell_name(chain, place)
        assert scores["full"][name] == question.points
        assert scores["stub"][name] == 0
        for number, row in enumerate(rounds, start=1):
            wrong = row.get(question.name)
            everything = [p.name for p in question.properties] if question.artifact else ()
            loses = wrong[0].loses if wrong else everything
            left = sum(p.points for p in question.properties if p.name not in loses)
            assert scores[f"wrong-{number}"][name] == left, (question.name, wrong)


def test_course_grade_finds_the_same_on_other_cases_and_recognizes_the_wrong_answers(
    chain, graded_by_us, rounds
):
    questions = registry.load(chain).questions
    expected = {
        "full": {},
        "stub": {n: {p.name for p in q.properties} for n, q in questions.items()},
    }
    for number, row in enumerate(rounds, start=1):
        expected[f"wrong-{number}"] = {name: set(w.loses) for name, (w, _) in row.items()}
        for name in artifacts(chain):
            expected[f"wrong-{number}"][name] = {p.name for p in questions[name].properties}
    for student, losses in expected.items():
        record = graded_by_us[student]
        assert record.state == State.GRADED, (student, record.reason)
        for question in record.questions:
            lost = {p.name for p in question.properties if p.failure is not None}
            assert lost == losses.get(question.question, set()), (student, question)
    for number, row in enumerate(rounds, start=1):
        record = {q.question: q for q in graded_by_us[f"wrong-{number}"].questions}
        for name, (wrong, _) in row.items():
            failures = [p.failure for p in record[name].properties if p.failure]
            assert any(wrong.says in f.explanations for f in failures), (name, wrong.name)


def test_validate_passes_the_solution_and_fails_the_stub(chain, graded):
    solution = graded.nbgrader("validate", f"submitted/full/{chain}/{chain}.ipynb")
    assert "Success! Your notebook passes all the tests." in solution.stdout, solution.stdout
    stub = graded.nbgrader("validate", f"submitted/stub/{chain}/{chain}.ipynb")
    failed = re.search(r"VALIDATION FAILED ON (\d+) CELL", stub.stdout)
    assert failed and int(failed[1]) == len(questions_of(chain)), stub.stdout


def test_feedback_says_which_mistake_was_made(chain, graded, rounds):
    done = graded.nbgrader("generate_feedback", chain)
    assert done.returncode == 0, done.stderr
    for number, row in enumerate(rounds, start=1):
        path = graded.root / "feedback" / f"wrong-{number}" / chain / f"{chain}.html"
        assert loaded_urls(path.read_text()) == []
        page = html.unescape(path.read_text())
        for name, (wrong, _) in row.items():
            assert wrong.says in page, (name, wrong.name)


def test_export_writes_every_student_to_the_csv(chain, graded):
    done = graded.nbgrader("export")
    assert done.returncode == 0, done.stderr
    with open(graded.root / "grades.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    points = sum(question.points for question, _ in questions_of(chain))
    assert float(rows["full"]["score"]) == points and float(rows["stub"]["score"]) == 0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def formgrader(graded):
    """A Jupyter server in the graded course; gives a function that fetches a path from it."""
    port = free_port()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(graded.root)}
    options = ["--no-browser", "--allow-root", f"--port={port}", "--IdentityProvider.token="]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter_server", *options, EXTENSION],
        cwd=graded.root,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

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
    assert loaded_urls(page) == []
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert "check(" in text and ("BEGIN MARK SCHEME" in text) is by_a_person
