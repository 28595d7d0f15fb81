"""Answers that are right for most inputs lose the points of what they miss, and no others.

This guards the cases against faults that no mutant makes, and that are too rare, or too many, for
`questions.toml` to name them; and that a changed argument costs the properties that say so.
"""

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from course_pkg.grading.questions import registry
from tests.exercises.assignments import answers_to, patched, points_lost

FACT = r'r"(?<!\w)" + re.escape(wording) + r"(?!\w)"'
INDEX_BITS = "(m - 1).bit_length()"
# Question, old and new text of the model answer, and the points that this loses.
PATCHES = {
    "evaluation-plan": [
        ("facts", FACT, 'r"(?<![^\\W_])" + re.escape(wording) + r"(?![^\\W_])"', 1),
        ("facts", FACT, r'r"(?<!\w)" + re.escape(wording) + r"(?![^\W\d])"', 1),
        ("facts", FACT, r'r"(?<!\d)" + re.escape(wording) + r"(?!\w)"', 1),
        ("facts", "forbidden if has(wording)]", "forbidden if wording in text]", 2),
        ("facts", "forbidden if has(wording)]", "forbidden if wording.lower() in text.lower()]", 1),
        ("better", "p[name] * left > alpha", "p[name] * left > 0.05", 1),
        ("better", "        tail =", "        1 / n\n        tail =", 1),
    ],
    "benchmarks": [
        ("program", '"^def', '"def', 1),
        ("program", 'line.lstrip(" ").startswith("```")', 'line.startswith("```")', 1),
        ("program", 'line.lstrip(" ").startswith("```")', '"```" in line', 1),
        ("program", "(defining or blocks or [text])", "(defining or [text])", 1),
        ("program", "text.splitlines(keepends=True)", "text.splitlines()", 3),
        ("overlap", "[a-z0-9]+", "[a-z]+", 1),
        ("overlap", "[a-z0-9]+", r"\\w+", 1),
        ("overlap", "[a-z0-9]+", "[a-z0-9-]+", 1),
        ("overlap", "len(covered)", "sum(w in {words[i] for i in covered} for w in words)", 2),
    ],
    "compression": [
        ("distillation", "= (z / temperature)", "= (z / temperature).exp().log()", 1),
        ("choose", "return math.inf", "q = [max(b, 1e-12) for b in q]", 1),
        ("count", "Fraction(str(sparsity))", "Fraction(sparsity).limit_denominator(100)", 2),
        ("mask", "= scores.view", "= (scores - torch.arange(scores.shape[1]) / 999).view", 3),
        ("bytes", "math.ceil(kept * index_bits / 8)", "(kept * index_bits + 4) // 8", 1),
        ("bytes", "math.ceil(columns / 8)", "(columns + 4) // 8", 1),
        ("bytes", INDEX_BITS, f"max(2, {INDEX_BITS})", 2),
        ("bytes", INDEX_BITS, f"min(4, {INDEX_BITS})", 1),
    ],
    "constrained": [
        ("run", "get(byte, -1)", "get(byte % 128, -1)", 1),
        ("run", "state == -1", "state == -1 or not transitions[state]", 0),
        ("masks", "state in accepting", "state in accepting[:1]", 1),
        ("masks", "t != end", "t < len(tokens) - 1", 4),
        ("trim", "while more:", "for _ in range(3):", 1),
        ("generate", "len(tokens) < most", "passes < most", 1),
        ("json", "re.escape(json.dumps(name, ensure_ascii=False))", "f'\"{name}\"'", 2),
    ],
    "multiple-choice": [
        ("log-probs", "torch.log_softmax(", "(lambda x, dim: (x.softmax(dim) + 1e-9).log())(", 1),
        ("scores", "len(option.encode())", "len(option.encode('utf-16-le'))", 1),
        ("scores", "len(option),", "len(option.split()),", 1),
        ("boundary", "option.strip()", "option", 1),
        ("boundary", "        start += 1", "        start += len(before)", 2),
        ("single", "values.index(highest) == answer", "math.exp(values[answer]) > 0.5", 1),
        ("calibration", "* bins) - 1, 0)", "* bins) - 1, -bins)", 1),
        ("calibration", "* bins // len(confidences)", "// (len(confidences) // bins)", 1),
    ],
}


STUDENTS = ("ada", *(f"student-{i}" for i in range(7)))  # cases of one may miss a rare fault


@pytest.mark.parametrize("assignment", PATCHES)
def test_a_small_fault_costs_at_most_what_it_breaks_and_somebody_all_of_it(assignment):
    wrong = []
    for question, old, new, points in PATCHES[assignment]:
        answer = patched(assignment, question, old, new)
        lost = {student: points_lost(assignment, question, answer, student) for student in STUDENTS}
        if max(lost.values()) != points:
            wrong.append((question, old, new, points, lost))
    assert wrong == []


def copied(value: Any) -> Any:
    """A copy; of a tensor by `clone`, since flash-attention watches what else is called."""
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def changed(value: Any) -> bool:
    """Change a tensor, list or dict in place; whether it can be."""
    match value:
        case torch.Tensor() if value.numel() > 0:
            with torch.no_grad():
                value.copy_(value == 0)
        case list():
            value.append(None)
        case dict():
            value["another"] = None
        case _:
            return False
    return True


# Its caller computes the scores of q and k afterwards, to look for them: `memory` has 2 points.
COMPUTED_AGAIN = {("flash-attention", "forward"): 2}


@pytest.mark.filterwarnings("ignore")
def test_a_changed_argument_costs_the_properties_that_say_so(assignment):
    odd = {}
    for name, model in answers_to(assignment).items():
        question = registry.load(assignment).questions[name]
        said = sum(prop.points for prop in question.properties if prop.unchanged)
        if not said or isinstance(model, type):
            continue
        for place in range(model.__code__.co_argcount):
            could = []

            def answer(*given, model=model, place=place, could=could):
                value = model(*map(copied, given))
                could.append(changed(given[place]))
                return value

            lost = points_lost(assignment, name, answer)
            if any(could) and lost - said not in (0, COMPUTED_AGAIN.get((assignment, name), 0)):
                odd[name, place] = lost, said
    assert odd == {}


def verdict_by_low(low, high, threshold, direction):
    """At most: failed from the threshold itself on."""
    if direction == "at most":
        return "passed" if high <= threshold else "failed" if low >= threshold else "not decided"
    return answers_to("evaluation-plan")["verdict"](low, high, threshold, direction)


def check_first_place(text, required, forbidden):
    def has(wording):
        start = text.lower().find(wording.lower())
        around = text[max(start - 1, 0) : start] + text[start + len(wording) :][:1]
        return start >= 0 and not any(c.isalnum() or c == "_" for c in around)

    missing = [k for k, fact in enumerate(required) if not any(map(has, fact))]
    return missing, list(filter(has, forbidden))


def gather_all_logits(logits, labels, first, all_reduce):
    end = first + logits.shape[1]
    size = int(all_reduce(torch.tensor([end]), "max"))
    whole = all_reduce(F.pad(logits, (first, size - end)), "sum").requires_grad_()
    count = (labels != -100).sum().clamp(min=1)
    loss = F.cross_entropy(whole, labels, reduction="sum") / count
    return loss, torch.autograd.grad(loss, whole)[0][:, first:end]


def formula_of_1f1b(orders, forward, backward):
    """The formula for one schedule, whatever the orders are."""
    ranks = len(orders)
    microbatches = len(orders[0]) // 2
    seconds = (microbatches + ranks - 1) * (forward + backward)
    in_flight = [min(ranks - rank, microbatches) for rank in range(ranks)]
    return seconds, (ranks - 1) / (microbatches + ranks - 1), in_flight


def smooth_nothing(x, weights, alpha):
    return torch.ones(x.shape[1]), x, weights


@pytest.mark.parametrize(
    ("assignment", "question", "answer", "lost"),
    [
        ("evaluation-plan", "verdict", verdict_by_low, 1),
        ("evaluation-plan", "facts", check_first_place, 1),
        ("parallelism", "cross-entropy", gather_all_logits, 1),
        ("parallelism", "simulate", formula_of_1f1b, 3),
        ("quantized-inference", "smooth", smooth_nothing, 5),
    ],
)
def test_another_way_that_is_wrong_costs_what_it_breaks(assignment, question, answer, lost):
    assert lost == max(points_lost(assignment, question, answer, one) for one in STUDENTS)


def test_a_missing_example_of_concepts_loses_its_own_point_alone():
    for name, whole in answers_to("concepts").items():
        last = registry.load("concepts").questions[name].properties[-1].name

        def partial(*inputs, whole=whole, last=last):
            return {key: each for key, each in whole(*inputs).items() if key != last}

        assert [points_lost("concepts", name, a) for a in (partial, lambda *_: {})] == [1, 3], name
