"""The functions that a page's worker calls: JSON in, JSON out."""

import json

import pytest

from course_pkg.labs import browser
from tests.repository import ROOT


@pytest.fixture(autouse=True)
def fresh():
    """Each test starts without names."""
    browser.reset(print, "{}")


def run(code: str, **more) -> tuple[dict, list[dict]]:
    """What a cell returned, and its outputs."""
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


def test_an_answer_that_fails_leaves_none_of_its_earlier_version():
    """As in the grader, where only this version runs."""
    answer = {"name": "answer 1", "forget": True}
    run("def f(): return 1", **answer)
    for broken in ("1 / 0\ndef f(): return 2", "def f(: return 2"):
        assert run(broken, **answer)[0] == {"ended": False}
        assert "NameError" in run("f()")[1][0]["error"]
        run("def f(): return 1", **answer)
    assert run("def f(): return 3\n1 / 0", **answer)[0] == {"ended": False}
    assert run("f()")[1] == [{"data": {"text/plain": "3"}}]


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

    cells = imported(json.dumps(mine))["cells"]
    assert cells[answer["metadata"]["id"]] == "def closest_length(a, b):\n    return 1"
    assert 'STUDENT = ""' in cells.values()
    assert "not JSON" in imported("{")["problem"]


def test_reset_forgets_names():
    run("x = 1")
    browser.reset(print, "{}")
    assert "NameError" in run("x")[1][0]["error"]
