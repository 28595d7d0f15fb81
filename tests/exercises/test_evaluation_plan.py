"""`evaluation-plan`: the examples of its tasks, and answers that are nearly right."""

import pytest

from tests.exercises.assignments import model_answers, patched, points_lost

FACT = r'r"(?<!\w)" + re.escape(wording) + r"(?!\w)"'


def test_the_examples_of_the_tasks_are_right():
    answers = model_answers("evaluation-plan")
    verdict = answers["verdict"]
    assert verdict(0.82, 0.95, 0.8, "at least") == "passed"
    assert verdict(0.75, 0.95, 0.8, "at least") == "not decided"
    assert verdict(0.02, 0.09, 0.1, "at most") == "passed"
    assert [answers["fewest_items"](0.8, wrong, 1.96) for wrong in (0, 2)] == [16, 33]
    facts = [["30 days", "thirty days"], ["$4"]]
    check = answers["check_answer"]
    assert check("Thirty days. It's FREE!", facts, ["free", "lifetime"]) == ([1], ["free"])
    assert check("After 130 days, for $4.", facts, ["free"]) == ([0], [])
    systems = {"a": [1] * 8 + [0, 0], "b": [1] * 6 + [0] * 4, "c": [1] * 5 + [0] * 5}
    assert answers["better"]([0] * 10, systems, 0.05) == ["a"]


@pytest.mark.parametrize(
    ("question", "old", "new", "lost"),
    [
        ("facts", FACT, 'r"(?<![^\\W_])" + re.escape(wording) + r"(?![^\\W_])"', 1),
        ("facts", FACT, r'r"(?<!\w)" + re.escape(wording) + r"(?![^\W\d])"', 1),
        ("facts", FACT, r'r"(?<!\d)" + re.escape(wording) + r"(?!\w)"', 1),
        ("facts", "forbidden if has(wording)]", "forbidden if wording in text]", 2),
        ("facts", "forbidden if has(wording)]", "forbidden if wording.lower() in text.lower()]", 1),
        ("better", "p[name] * left > alpha", "p[name] * left > 0.05", 1),
        ("better", "p[name] * left > alpha", "p[name] * left >= alpha", 1),
        ("better", "        tail =", "        1 / n\n        tail =", 1),
    ],
)
def test_an_answer_that_is_nearly_right_loses_points(question, old, new, lost):
    changed = patched("evaluation-plan", question, old, new)
    assert points_lost("evaluation-plan", question, changed) == lost


def test_a_lower_bound_on_the_threshold_is_not_decided_at_most():
    def verdict(low, high, threshold, direction):
        if direction == "at most":
            return (
                "passed" if high <= threshold else "failed" if low >= threshold else "not decided"
            )
        return answer(low, high, threshold, direction)

    answer = model_answers("evaluation-plan")["verdict"]
    assert points_lost("evaluation-plan", "verdict", verdict) == 1


def test_only_the_first_place_of_a_wording_is_not_enough():
    def check_answer(text, required, forbidden):
        def has(wording):
            start = text.lower().find(wording.lower())
            around = text[max(start - 1, 0) : start] + text[start + len(wording) :][:1]
            return start >= 0 and not any(c.isalnum() or c == "_" for c in around)

        missing = [k for k, fact in enumerate(required) if not any(map(has, fact))]
        return missing, list(filter(has, forbidden))

    assert points_lost("evaluation-plan", "facts", check_answer) == 1
