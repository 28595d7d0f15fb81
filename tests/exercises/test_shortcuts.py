"""Answers that earned points without work, for every student, earn none."""

import torch

from tests.exercises.assignments import drawn_for, points_lost
from tests.tables import each_row

STUDENTS = ("ada", "bob", "cem", "dia")


@each_row(
    ("assignment", "question", "answer"),
    [
        ("constrained", "generate", lambda *_: ([], 2, False)),
        ("constrained", "run", lambda transitions, state, data: state),
        ("constrained", "run", lambda *_: -1),
        ("evaluation-plan", "better", lambda baseline, systems, alpha: list(systems)),
        ("evaluation-plan", "facts", lambda text, required, forbidden: ([], forbidden)),
        ("lora-script", "encode", lambda m, a, t: ([t.eos_token_id], [t.eos_token_id])),
        ("benchmarks", "program", lambda text, name: text),
        ("bleu", "closest-length", lambda length, lengths: lengths[2]),
        ("bleu", "brevity-penalty", lambda c, r: 1.0),
        ("quantization", "levels", lambda bits, offset: torch.tensor([-1.0, 1.0])),
    ],
)
def test_what_needs_no_work_earns_nothing(assignment, question, answer):
    points = drawn_for(assignment).answers[question].points
    assert [points_lost(assignment, question, answer, s) for s in STUDENTS] == [points] * 4
