"""`lora-script`, trained several times: what reaches its bars and what does not, with the margin.

Each run is the notebook's own script, changed in one place, and takes half a minute of one core.
"""

import json
from random import Random

import pytest

from course_pkg.datasets import draw_tickets
from course_pkg.grading.checks.lora_script import adapter_quality as quality
from course_pkg.grading.checks.lora_script.adapter_quality import Measured, measure
from course_pkg.grading.checks.lora_script.submitted_adapter import read_adapter
from tests.exercises.lora_script_run import run_script

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.model]
ENCODED = "    rows = [encode(chat(prompt), answer, tokenizer) for prompt, answer in pairs]\n"
SHIFTED = "    pairs = list(zip([p for p, _ in pairs], [a for _, a in pairs][1:]))\n"
CONSTANT = "    pairs = [(prompt, pairs[0][1]) for prompt, _ in pairs]\n"
REORDERED = (
    "    pairs = [(p, ' | '.join(a.replace(' >', ' |').split(' | ')[::-1])) for p, a in pairs]\n"
)
PROMPTS = (
    "    rows = [(i, i[: y.count(-100)] + [-100] * (len(i) - y.count(-100))) for i, y in rows]\n"
)
WRONG = {
    "answers of other prompts": SHIFTED + ENCODED,
    "one constant answer": CONSTANT + ENCODED,
    "another task": REORDERED + ENCODED,
    "questions in place of answers": ENCODED + PROMPTS,
}


def measured(files: dict[str, bytes]) -> Measured:
    """On 64 tickets, more than a submission is measured on."""
    records = [(r["prompt"], r["answer"]) for r in draw_tickets(64, Random("fresh"))]
    return measure(read_adapter(files), records)


MINUTES = pytest.mark.minutes
SEEDS = [1, pytest.param(2, marks=MINUTES), pytest.param(4, marks=MINUTES)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_script_reaches_every_bar_with_room_to_spare(tmp_path, seed):
    rotated = f"    pairs = pairs[{16 * seed} :] + pairs[: {16 * seed}]\n" + ENCODED
    files = run_script(tmp_path, ("manual_seed(0)", f"manual_seed({seed})"), (ENCODED, rotated))
    found = measured(files)
    print(seed, found, json.loads(files["report.json"]))
    assert 3 * found.loss <= quality.TASK_BAR and found.exact >= 2 * quality.EXACT_BAR, found


@MINUTES
@pytest.mark.parametrize("name", WRONG)
def test_another_training_stays_above_the_bar(tmp_path, name):
    found = measured(run_script(tmp_path, (ENCODED, WRONG[name])))
    print(name, found)
    assert found.loss >= 1.2 * quality.FORMAT_BAR and found.exact == 0, found


def test_the_base_alone_stays_above_the_bar():
    records = quality.adapter_format(Random(0), 0)["records"]
    found = measure(None, records)
    print(found)
    assert found.loss >= 2 * quality.FORMAT_BAR and found.exact == 0
