"""`check` in the reader's browser says of every answer what it says in Jupyter."""

import hashlib
import inspect
import json

import pytest

from course_pkg.pages.labs.assignments import ASSIGNMENTS
from tests.pages.labs import without_libraries
from tests.pages.labs.test_without_numpy import run as in_a_process

pytestmark = [pytest.mark.browser, pytest.mark.slow]
# Where Python 3.13, in the browser, words an error differently than 3.11.
WORDING = {
    "rouge: lcs: empty": (
        "max() iterable argument is empty",
        "max() arg is an empty sequence",
    ),
}
ASK = """
import hashlib, json
found = reports({name!r})["found"]
print(json.dumps({{
    key: [points, report, hashlib.sha256(html.encode()).hexdigest()]
    for key, (points, report, html) in found.items()
}}))
"""
LOOP = """
from course_pkg.grading import check as module
module.CASE_S = 1.0
def forever(length, lengths):
    while True:
        pass
print(module.check("bleu/closest-length", forever).report)
"""


def printed(python, code: str) -> str:
    """What a cell prints in the browser; it must end without an error."""
    cell = {"id": 0, "name": "cell 1", "code": code}
    result = python.evaluate("cells => runCells(cells, [0])", [cell])["0"]
    assert result["ended"], result["outputs"][-1]
    return "".join(output["text"] for output in result["outputs"])


@pytest.mark.exhaustive
def test_every_answer_gets_the_same_report(python):
    source = inspect.getsource(without_libraries.reports)
    all_here = in_a_process(*ASSIGNMENTS)
    different = {}
    for assignment in ASSIGNMENTS:
        there = json.loads(printed(python, source + ASK.format(name=assignment)))
        here = all_here[assignment]["found"]
        assert set(there) == set(here) and len(here) > 10
        for key, (points, report, html) in here.items():
            ours, theirs = WORDING.get(f"{assignment}: {key}", ("", ""))
            texts = [text.replace(theirs, ours or theirs) for text in (report, html)]
            wanted = [points, texts[0], hashlib.sha256(texts[1].encode()).hexdigest()]
            if there[key] != wanted:
                different[assignment, key] = (wanted[:2], there[key][:2])
    assert different == {}


def test_a_loop_without_end_is_stopped_by_the_limit(python):
    report = printed(python, LOOP).splitlines()
    assert report[0] == "bleu/closest-length: 0 of 2 points"
    assert any("Stopped after" in line for line in report)
