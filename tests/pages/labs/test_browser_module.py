"""The functions that a page's worker calls: JSON in, JSON out."""

import json

import pytest

from course_pkg.grading import check as check_module
from course_pkg.pages.labs import browser
from tests.repository import ROOT


@pytest.fixture(autouse=True)
def fresh():
    browser.reset(print, "{}")


def run(code: str, **more) -> tuple[dict, list[dict]]:
    outputs: list[dict] = []
    text = browser.run(
        lambda output: outputs.append(json.loads(output)),
        json.dumps({"code": code, "name": "cell 1", **more}),
    )
    return json.loads(text), outputs


def test_a_cell_returns_whether_it_ended():
    assert run("1 + 1") == ({"ended": True}, [{"data": {"text/plain": "2"}}])
    result, outputs = run("1 / 0")
    assert result == {"ended": False} and "ZeroDivisionError" in outputs[0]["error"]


def test_a_quiet_cell_hands_nothing_over():
    assert run("print(1)\nx = 2\n1 / 0", quiet=True) == ({"ended": False}, [])
    assert run("x")[1] == [{"data": {"text/plain": "2"}}]


def test_the_points_of_a_check_are_returned():
    code = "from course_pkg.grading.check import check\n"
    right = "def f(length, lengths):\n    return min(lengths, key=lambda n: (abs(n - length), n))\n"
    assert run(f"{code}{right}check('bleu/closest-length', f)")[0] == {"ended": True, "score": 2.0}
    assert run("check('bleu/closest-length', None)")[0] == {"ended": True, "score": 0.0}
    assert run("2.0")[0] == {"ended": True}


def test_an_absent_package_is_explained():
    outputs = run("import no_such_package")[1]
    assert "No module named 'no_such_package'" in outputs[0]["error"]
    assert "use Jupyter" in outputs[1]["note"]
    assert len(run("1 / 0")[1]) == 1


def test_a_notebook_of_another_editor_is_imported_by_the_rule_of_the_grader():
    path = ROOT / "exercises" / "bleu" / "bleu.ipynb"
    released = json.loads(path.read_text("utf-8"))
    mine = json.loads(path.read_text("utf-8"))
    for cell in mine["cells"]:  # as Colab writes format 4.0
        cell["metadata"] = {"id": cell.pop("id")}
    (answer,) = (c for c in mine["cells"] if "def closest_length" in "".join(c["source"])[:20])
    answer["source"] = ["def closest_length(a, b):\n", "    return 1"]

    def imported(text):
        given = {"text": text, "notebook": released, "name": "bleu"}
        return json.loads(browser.imported(print, json.dumps(given)))

    mine["cells"].append({"cell_type": "code", "metadata": {}, "source": "helper = 1"})
    result = imported(json.dumps(mine))
    cells = result["cells"]
    assert result["others"] == 1
    assert cells[answer["metadata"]["id"]] == "def closest_length(a, b):\n    return 1"
    assert 'STUDENT = ""' in cells.values()
    assert "not JSON" in imported("{")["problem"]


def test_reset_forgets_names():
    run("x = 1")
    browser.reset(print, "{}")
    assert "NameError" in run("x")[1][0]["error"]


def test_a_check_says_that_its_answers_cell_failed():
    """Under the name that the page has for that cell; an answer that is missing is no failure."""
    begin = "from course_pkg.grading.check import check\n"
    right = "def f(length, lengths):\n    return min(lengths, key=lambda n: (abs(n - length), n))\n"
    ask = "check('bleu/closest-length', f)"
    ended = "Your answer's cell ended with an error: "
    for answer, points, said in (
        (right, 2.0, None),
        ("def f(:", None, f"{ended}SyntaxError: invalid syntax, so nothing was checked."),
        (f"1 / 0\n{right}", None, f"{ended}ZeroDivisionError: division by zero, so nothing"),
        (
            f"{right}\n1 / 0",
            2.0,
            f"{ended}ZeroDivisionError: division by zero. What it had defined",
        ),
        ("raise NotImplementedError", None, None),
    ):
        browser.reset(print, "{}")
        run(begin)
        run(answer, name="answer 4")
        result, outputs = run(ask, name="check 4", answer="answer 4")
        notes = [output["note"] for output in outputs if "note" in output]
        assert result.get("score") == points, answer
        assert [note for note in notes if not said or not note.startswith(said)] == [], answer
        assert bool(notes) == bool(said), answer
        assert not said or "NameError" not in str(outputs)


def test_reset_forgets_numbers_worked_by_hand():
    """A number that follows from an earlier one is judged by what was given since."""
    begin = (
        "from course_pkg.grading.check import check, variant\n"
        "case = variant('bleu/one-reference', student='ada')\n"
    )
    run(f"{begin}check('bleu/by-hand/counts', [(1, 1)] * 4)")
    assert check_module._by_hand and check_module._students
    browser.reset(print, "{}")
    assert not check_module._by_hand and not check_module._students
