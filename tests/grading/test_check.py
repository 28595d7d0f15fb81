"""`check` in process: scores that nbgrader can read, reports, unanswered cells, noise."""

import contextlib
import copy
import itertools
import json
import pickle
import re
import sys
import warnings
from pathlib import Path

import pytest
from IPython.core.formatters import DisplayFormatter
from nbformat.v4 import new_code_cell, new_output
from nbgrader.utils import determine_grade

from course_pkg.grading.check import INTERRUPTED, _Calls, check, variant
from course_pkg.grading.questions.calling import NOT_RUN, outcome
from course_pkg.grading.questions.registry import UnknownQuestion, assignments, load
from tests.chromium import Tab, low_contrast, running


def count(shapes, targets, rank):
    return sum(rank * sum(s) for n, s in shapes.items() if n.split(".")[-1] in targets)


def test_print_and_pythons_prompt_show_the_report_and_the_value_stays_a_number():
    score = check("lora-math/counts", lambda *_: 0)
    assert str(score) == repr(score) == f"{score}" == score.report
    assert score == 0.0 and float(score) + 1 == 1 and f"{score:.1f}" == "0.0"
    assert json.dumps({"points": score}) == '{"points": 0.0}'
    assert copy.deepcopy(score).report == pickle.loads(pickle.dumps(score)).report == score.report
    data, _ = DisplayFormatter().format(score)
    assert float(data["text/plain"]) == 0.0
    assert data["text/html"].count("✗") == 2 and "<script" not in data["text/html"]
    cell = new_code_cell(metadata={"nbgrader": {"grade": True, "solution": False, "points": 3}})
    data, _ = DisplayFormatter().format(check("lora-math/counts", count))
    cell.outputs = [new_output("execute_result", data=data)]
    assert determine_grade(cell) == (3.0, 3.0)


# Rules of the book's theme, then those of JupyterLab.
AROUND = """
dl[class]:not(.glossary, .simple) { margin-bottom: 3rem; }
dl[class]:not(.glossary, .simple) dd { margin-left: 2rem; margin-bottom: 10px; }
main dl dd { float: left; width: 50%; }
main p { margin-bottom: 1em; }
"""


LIGHT = "rgb(255, 255, 255)"
DARK = "rgb(28, 32, 38)"
THEMES = (  # how a theme marks the body, the color of a report on it, and a window's width
    ("", LIGHT, 1280),
    ('data-jp-theme-light="true"', LIGHT, 390),
    ('data-jp-theme-light="false"', DARK, 1280),
    ('data-theme="dark"', DARK, 390),
    ('class="vscode-dark"', DARK, 1280),
)
COLOR = "e => getComputedStyle(e).backgroundColor"
MARGINS = "all => all.map(e => getComputedStyle(e).marginLeft + getComputedStyle(e).marginBottom)"


@pytest.mark.browser
def test_a_report_in_a_notebook_is_readable_in_light_and_dark(tmp_path):
    long_word = "w" * 300
    score = check("lora-math/counts", lambda *_: print(*range(9), sep="\n") or long_word)
    file = tmp_path / "cell.html"
    with running() as browser:
        for mark, card, width in THEMES:
            main = f"<main>{score._repr_html_()}</main>"
            file.write_text(f"<!doctype html><style>{AROUND}</style><body {mark}>{main}")
            tab = Tab(browser, width=width, scheme="dark")  # the system's colors don't decide
            page = tab.open(file)
            assert page.eval_on_selector(".course-report", COLOR) == card, mark
            assert low_contrast(page, "main") == tab.problems == [], mark
            assert page.evaluate("document.documentElement.scrollWidth") <= width, mark
            margins = page.eval_on_selector_all(".rows, .rows dd", MARGINS)
            assert len(margins) > 2 and set(margins) == {"0px0px"}, mark
            first, *others = page.eval_on_selector_all(
                ".rows, .rows .code", "all => all.map(e => e.offsetWidth)"
            )
            assert max(others) > 0.6 * first, mark
            tab.context.close()


def test_what_an_answer_says_is_escaped():
    def hostile(*_):
        raise ValueError("<script>alert(1)</script>")

    html = check("lora-math/counts", hostile)._repr_html_()
    assert "<script" not in html and "&lt;script" in html


def stub(*_):
    raise NotImplementedError


def test_an_unanswered_cell_is_never_right():
    for answer, name in itertools.product(
        (None, ..., NotImplemented, stub), load("lora-math").questions
    ):
        score = check(f"lora-math/{name}", answer)
        assert score == 0 and "Not answered yet." in score.report, (answer, name)
        assert "One mistake" not in score._repr_html_()


def test_an_error_is_shown_with_the_line_that_raised_it():
    def divides(*_):
        return 1 / 0

    report = check("lora-math/counts", divides).report
    assert "ZeroDivisionError: division by zero (at `return 1 / 0`)" in report


@pytest.mark.filterwarnings("ignore:careful")
def test_warnings_and_stderr_cost_nothing_and_are_not_lost(capfd):
    def noisy(shapes, targets, rank):
        warnings.warn("careful", stacklevel=1)
        print("to stderr", file=sys.stderr)
        print("to stdout")
        return count(shapes, targets, rank)

    assert check("lora-math/counts", noisy) == 3.0
    out, err = capfd.readouterr()
    assert err == "" and "to stderr" in out and "to stdout" in out


def test_what_an_answer_prints_is_folded_after_a_few_lines(capfd):
    def chatty(shapes, targets, rank):
        print("looking at", *shapes, sep="\n")
        return 0

    score = check("lora-math/counts", chatty)
    out = capfd.readouterr().out.splitlines()
    assert (len(out), out[0]) == (6, "looking at")
    assert re.fullmatch(r"\[… \d+ more lines\]", out[5])
    assert "<details" in score._repr_html_() and score._repr_html_().count("looking at") > 5
    assert "looking at" not in score.report
    assert "<details" not in check("lora-math/by-hand/parameters", 1)._repr_html_()
    shown = check("lora-math/counts", lambda *_: print("x\n" * 20_000))._repr_html_()
    assert "the rest is cut: more than 10,000 characters" in shown and len(shown) < 20_000


def test_an_endless_loop_is_stopped_and_later_inputs_are_not_run(monkeypatch):
    monkeypatch.setattr("course_pkg.grading.check.CASE_S", 0.1)

    def stuck(shapes, targets, rank):
        while rank == 1:
            with contextlib.suppress(Exception):  # an answer may catch what it can
                sum(range(1000))
        return count(shapes, targets, rank)

    score = check("lora-math/counts", stuck)
    assert score == 2.0  # the inputs before it count
    assert "Stopped after 20 s on this input: is there a loop" in score.report


def test_an_interrupted_cell_keeps_what_it_has_under_the_grader_only(monkeypatch):
    def interrupted(n):
        if n == 2:
            raise KeyboardInterrupt
        return n

    inputs = [{"n": n} for n in (1, 2, 3)]
    with pytest.raises(KeyboardInterrupt):
        _Calls(("n",), interrupted, None).outcomes(inputs, [False] * 3)
    monkeypatch.setenv("COURSE_CHECKER_FD", "0")
    outcomes = _Calls(("n",), interrupted, None).outcomes(inputs, [False] * 3)
    assert outcomes == [{"value": 1}, {"error": INTERRUPTED}, {"error": NOT_RUN}]


def test_a_reader_without_a_name_is_told_that_the_case_is_the_example():
    variant("lora-math/by-hand")
    score = check("lora-math/by-hand/parameters", 30_720)
    assert "You see the example case. Type your name" in score.report
    assert "Type your name" in score._repr_html_()
    assert "Type your name" not in check("lora-math/counts", count).report
    variant("lora-math/by-hand", student="ada")
    assert "Type your name" not in check("lora-math/by-hand/parameters", 30_720).report


def test_names_are_compared_without_case_and_surrounding_space():
    names = ("zo\u00eb b", " ZOE\u0308 B ", "Zo\u00eb B")
    first, *others = (variant("lora-math/by-hand", student=name) for name in names)
    assert others == [first, first] and variant("lora-math/by-hand", student="zoe b") != first
    assert variant("lora-math/by-hand", student=None) == variant("lora-math/by-hand")


def test_what_is_wrong_is_said_in_the_words_of_the_task():
    for question, answer, says in (
        ("lora-math/counts", lambda *_: object(), "expected a number, text"),
        ("rouge/skip-bigrams", lambda tokens, max_gap: [], "      Expected a Counter or a dict"),
        ("bleu/by-hand/counts", [(9, 9), (8, 8), (7, 7), (6, 6)], "      n = 1: "),
    ):
        assert says in check(question, answer).report


def test_only_a_stubs_own_error_means_that_nothing_is_answered():
    import torch

    def unwritten(n):
        # YOUR CODE HERE
        raise NotImplementedError()

    def told(n):
        raise NotImplementedError("later")

    lacks = torch.nn.Module()
    for answer, unanswered in (
        (unwritten, True),
        (told, True),
        (lambda n: lacks(torch.ones(2)), False),  # Module has no forward
        (lambda n: torch.ones(2, dtype=torch.complex64).clamp(0, 1), False),
    ):
        result = outcome(("n",), answer, {"n": 1})
        assert ("unanswered" in result) == unanswered, result
        assert unanswered or "NotImplementedError" in result["error"] or "clamp" in result["error"]


def test_none_and_empty_values_are_shown_as_given():
    for answer, shown in (([], "[]"), ({}, "{}"), (None, "None"), (0, "0")):
        report = check("lora-math/counts", lambda *_, a=answer: a).report
        assert f"given: {shown}" in report, report


def test_none_is_explained_everywhere():
    for assignment in ("bleu", "lora-math", "rouge"):
        for name, question in load(assignment).questions.items():
            if question.call and question.call != "merge":  # its answer is a class
                report = check(f"{assignment}/{name}", lambda *_: print("0.5")).report
                assert "None was given: did you print the result instead" in report, name


def test_the_report_shows_the_smallest_failing_input_expected_given_and_hint():
    report = check("lora-math/counts", lambda *_: 1).report
    labels = "The number differs.", "smallest failing input", "given: 1", "expected: ", "hint: "
    assert sorted(labels, key=report.index) == list(labels)


def test_a_number_by_hand_is_not_given_away():
    variant("lora-math/by-hand")
    report = check("lora-math/by-hand/parameters", 1).report
    assert "expected" not in report and "30720" not in report
    assert "given: 1" in report
    assert "your case: {" in report and "smallest failing" not in report


DIAGNOSES = (  # a question, a wrong answer, a part of what is said, and whether with a hint
    ("lora-math/counts", lambda shapes, targets, rank: 1, "The number differs.", True),
    ("lora-math/counts", lambda shapes, targets, rank: 1.5, "Expected an integer, but a f", False),
    ("lora-math/counts", lambda shapes: 1, "takes 1 positional argument but 3 were given", False),
    ("lora-math/forward", lambda x, *_: x[0], "Expected the shape", False),
    (
        "lora-math/forward",
        lambda x, w, b, A, B, alpha: w @ x + (0 if b is None else b) + alpha / len(A) * B @ (A @ x),
        "you computed weight @ x",
        False,
    ),
    (
        "lora-math/forward",
        lambda x, w, b, A, B, a: x @ w + (0 if b is None else b) + a / len(A) * x @ A.T @ B.T,
        "you computed x @ weight;",
        False,
    ),
    ("bleu/counts", lambda *_: [(0, 0)] * 3, "Expected a list of 4 (n = 1", False),
    ("bleu/counts", lambda h, r: {1: 2}, "(n = 1, n = 2, n = 3, n = 4), but a dict", False),
    ("bleu/by-hand/brevity-penalty", (1.0, 0.8187), "right values, in another order", False),
    ("bleu/by-hand/scores", (0.0, 0.4273), "left out the brevity penalty", False),
    ("bleu/by-hand/scores", (0.3498, 0.0), "right values, in another order", False),
    ("quantized-inference/by-hand/step", (0.4, -0.056), "error has the other sign", False),
    ("quantized-inference/by-hand/step", (0.4, 0.0875), "multiplied the difference by", False),
    ("quantized-inference/by-hand/step", (0.056, 0.4), "right values, in another order", False),
)


@pytest.mark.parametrize(("question", "answer", "says", "hint"), DIAGNOSES)
def test_a_report_says_what_is_wrong_and_hints_only_at_a_value(question, answer, says, hint):
    for name in ("bleu/one-reference", "quantized-inference/by-hand"):
        variant(name)
    report = check(question, answer).report
    assert says in report and ("hint: " in report) == hint, report


def test_a_number_by_hand_shows_what_of_the_case_it_is_about():
    variant("quantized-inference/by-hand")
    report = check("quantized-inference/by-hand/storage", (1, 2)).report
    case = "{rows: 4096, columns: 11008, bits: 4, group: 128}"
    assert f"your case: {case}" in report
    report = check("quantized-inference/by-hand/codes", [0] * 6).report
    assert "your case: {inputs: [0.33, -1.6" in report and "weights" not in report


def test_the_line_that_a_report_gives_to_try_a_case_can_be_pasted():
    def match_counts(hypothesis, references):
        return [(len(hypothesis), 0)] * 4

    class LoRALinear:
        def __init__(self, base, rank, alpha):
            raise ValueError(rank)

    for question, answer, ends in (
        ("bleu/counts", match_counts, "match_counts(case['hypothesis'], case['references'])"),
        ("lora-math/merge", LoRALinear, '.case("start"); case'),
    ):
        (line,) = re.findall(r"run this to try it: (case = .*)", check(question, answer).report)[:1]
        assert line.endswith(ends)
        names = {"check": check, answer.__name__: answer}
        first, last = line.split("; ")
        exec(first, names)
        value = eval(last, names)
        assert value == (match_counts(**names["case"]) if "match" in last else names["case"])


def test_unknown_questions_name_the_nearest():
    for question, message in (
        ("lora-math/forwards", r"did you mean forward\?"),
        ("lora-maths/forward", "there are: "),
        ("forward", "expected 'assignment/question'"),
        ("../etc/passwd", "no assignment is called '..'"),
    ):
        with pytest.raises(UnknownQuestion, match=message):
            check(question, 1)


def test_every_assignment_has_a_source():
    folder = Path(__file__).parents[2] / "solutions"
    assert assignments() == sorted(path.name for path in folder.iterdir() if path.is_dir())
