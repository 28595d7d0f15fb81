"""The checker as a process of its own: same scores, nothing said, last answer in time counts."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from course_pkg.grading.checker import serve
from course_pkg.grading.contract.exam import Exam
from course_pkg.grading.contract.protocol import receive, send
from course_pkg.grading.contract.seeds import PUBLIC_KEY
from tests.exercises.assignments import (
    SOLUTIONS,
    assignments,
    notebook,
    with_answers,
    wrong_answers,
)

ROOT = Path(__file__).parents[2]
KEY = b"\x07" * 32
SIT = """
import sys, json
from course_pkg.grading.checker import sit
sit(json.loads(sys.argv[1]), [1, int(sys.argv[2]), 0])
"""
RUN_CELLS = """
import sys, json
for source in json.load(sys.stdin):
    try:
        exec(source, globals())
    except Exception as error:
        print(repr(error))
"""


class Sitting:
    """A checker process and one end of its socket; `results` closes it and reads the verdict."""

    def __init__(self, assignment: str, student: str = "ada", key: bytes = KEY) -> None:
        self.mine, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SIT, json.dumps({"assignment": assignment, "student": student}),
             str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            cwd=ROOT, text=True,
        )  # fmt: skip
        theirs.close()
        self.process.stdin.write(key.hex() + "\n")
        self.process.stdin.close()

    def ask(self, message):
        send(self.mine, message)
        return receive(self.mine)

    def run(self, cells: list[str]) -> str:
        """Run notebook cells in a student's process that holds the other end."""
        done = subprocess.run(
            [sys.executable, "-c", RUN_CELLS], input=json.dumps(cells), cwd=ROOT, text=True,
            pass_fds=[self.mine.fileno()], capture_output=True, check=True, timeout=300,
            env={**os.environ, "COURSE_CHECKER_FD": str(self.mine.fileno())},
        )  # fmt: skip
        return done.stdout

    def results(self) -> dict[str, dict]:
        self.mine.close()
        out = self.process.stdout.read()
        assert self.process.wait(60) == 0
        return {row["question"]: row for row in json.loads(out)}


def code_cells(nb, student="ada"):
    sources = [cell.source for cell in nb.cells if cell.cell_type == "code"]
    return [s.replace('STUDENT = ""', f'STUDENT = "{student}"') for s in sources]


@pytest.mark.slow
@pytest.mark.parametrize("assignment", assignments())
def test_the_solution_is_full_and_wrong_answers_lose_the_same_as_in_process(assignment):
    full, wrong = Sitting(assignment), Sitting(assignment)
    nb = notebook(SOLUTIONS, assignment)
    out = full.run([s.replace("check(", "print(check(", 1) + ")" if "check(" in s.split("\n")[-1]
                    else s for s in code_cells(nb)])  # fmt: skip
    said = [line for line in out.splitlines() if line.startswith(assignment)]
    assert said == [f"{assignment}/{name}: recorded" for name in Exam(assignment).questions]
    results = full.results()
    assert all(row["earned"] == row["points"] > 0 for row in results.values())

    first = {w.question: w for w in reversed(wrong_answers(assignment))}
    answers = {name: w.code for name, w in first.items()}
    wrong.run(code_cells(with_answers(nb, answers)))
    for name, row in wrong.results().items():
        lost = {p["name"] for p in row["properties"] if p["failure"]}
        assert lost == set(first[name].loses), name


@pytest.mark.parametrize("assignment", assignments())
def test_nobody_answers_nothing_is_earned(assignment):
    results = Sitting(assignment).results()
    assert set(results) == set(Exam(assignment).questions)
    assert {row["earned"] for row in results.values()} == {0}


@pytest.fixture(scope="module")
def sitting():
    """One checker for all the tests that only talk to it."""
    sitting = Sitting("lora-math")
    yield sitting
    sitting.results()


def test_draws_are_not_those_of_the_public_key(sitting):
    secret, public = (Exam("lora-math", "ada", key).inputs("counts") for key in (KEY, PUBLIC_KEY))
    assert secret != public
    assert sitting.ask({"op": "inputs", "question": "counts"}) == {"inputs": secret}


def test_a_right_and_a_wrong_answer_get_the_same_reply(sitting):
    exam = Exam("lora-math", "ada", KEY)
    right = [{"value": case.expected} for case in exam._draw("counts")]
    for outcomes in (right, [{"value": 0}] * len(right), [], "junk"):
        reply = sitting.ask({"op": "record", "question": "counts", "outcomes": outcomes})
        assert reply == {"recorded": True}


@pytest.mark.parametrize(
    "request_",
    [{"op": "results"}, {"op": "inputs"}, {"op": "inputs", "question": "nothing"}, [], "x", None],
)
def test_other_requests_are_refused_and_the_checker_goes_on(sitting, request_):
    assert "error" in sitting.ask(request_)
    assert "inputs" in sitting.ask({"op": "inputs", "question": "counts"})


def test_the_last_complete_answer_counts():
    exam = Exam("lora-math", "ada", KEY)
    right = [{"value": case.expected} for case in exam._draw("counts")]
    exam.inputs("counts")
    exam.record("counts", [{"value": 0}] * len(right))
    exam.record("counts", right)
    exam.record("counts", right[:1])
    assert exam.result("counts").earned == 3


def test_an_answer_after_the_deadline_or_before_the_inputs_does_not_count():
    now = [0.0]
    exam = Exam("lora-math", "ada", KEY, clock=lambda: now[0])
    right = [{"value": case.expected} for case in exam._draw("counts")]
    exam.record("counts", right)
    assert exam.result("counts").earned == 0
    exam.inputs("counts")
    now[0] = exam.questions["counts"].deadline_s + 0.1
    exam.inputs("counts")
    exam.record("counts", right)
    assert exam.result("counts").earned == 0


def test_junk_on_the_socket_ends_the_sitting_and_keeps_what_was_earned():
    mine, theirs = socket.socketpair()
    exam = Exam("lora-math", "ada", KEY)
    right = [{"value": case.expected} for case in exam._draw("counts")]
    send(mine, {"op": "inputs", "question": "counts"})
    send(mine, {"op": "record", "question": "counts", "outcomes": right})
    mine.sendall(b"\xff" * 64)
    serve(theirs, exam)
    assert exam.result("counts").earned == 3


@pytest.mark.slow
def test_a_real_kernel_inherits_the_socket_and_only_records():
    from nbclient import NotebookClient

    sitting = Sitting("lora-math")
    nb = notebook(SOLUTIONS, "lora-math")
    for cell, source in zip(
        [c for c in nb.cells if c.cell_type == "code"], code_cells(nb), strict=True
    ):
        cell.source = source
    client = NotebookClient(nb, timeout=120, kernel_name="python3")
    descriptor = sitting.mine.fileno()
    env = {**os.environ, "COURSE_CHECKER_FD": str(descriptor), "PYTHONPATH": str(ROOT)}
    client.execute(env=env, pass_fds=[descriptor])
    shown = [o["data"]["text/plain"] for c in nb.cells for o in c.get("outputs", [])
             if o["output_type"] == "execute_result"]  # fmt: skip
    assert shown and all(text.endswith(": recorded") for text in shown)
    assert all(row["earned"] == row["points"] for row in sitting.results().values())
