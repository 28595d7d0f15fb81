"""`lora-script`, trained: what reaches its bars and what does not, with the margin.

Each run is the notebook's own script, in most changed in one place. It takes half a minute of one
core.
"""

import json
from random import Random

import pytest
from peft import LoraConfig

from course_pkg.grading.assignments.lora_script import cases as quality
from course_pkg.grading.assignments.lora_script.cases import Measured, measure
from course_pkg.grading.assignments.lora_script.submitted_adapter import read_adapter
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.pages.datasets import draw_tickets
from tests.exercises.lora_script_run import CONFIG, Files, run_script, tensors

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


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Files:
    return run_script(tmp_path_factory.mktemp("script"))


def lost(files: Files) -> dict[str, str]:
    """The properties that an adapter loses, as a submission of one student, and why."""
    session = GradingSession("lora-script", "ada", b"k")
    assert session.inputs("adapter") == [{}]
    session.record("adapter", [{"value": files}])
    failures = session.verdict("adapter").failures
    return {name: failure.reason for name, failure in failures.items() if failure}


def fresh() -> list[tuple[str, str]]:
    return quality.adapter_format(Random(3), 0)["records"]


def test_the_trained_adapter_earns_every_point(trained):
    assert lost(trained) == {}


def test_in_half_precision_and_as_peft_describes_it_it_is_accepted(trained, tmp_path):
    LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
        base_model_name_or_path="/home/ada/.cache/llm-course/smollm2-135m",
    ).save_pretrained(tmp_path)
    half = tensors(lambda name, tensor: {name: tensor.half()})(trained)
    described = half | {CONFIG: (tmp_path / CONFIG).read_bytes(), "README.md": b"a card"}
    assert quality.learned_task(fresh(), described) is None


def test_with_another_scale_in_its_numbers_it_loses_everything(trained):
    reasons = lost(tensors(lambda n, t: {n: 8 * t if "lora_B" in n else t})(trained))
    assert set(reasons) == {"format", "task", "report"}
    assert "without an adapter it is 2." in reasons["format"]
    assert "no report counts" in reasons["report"]


def test_with_the_opposite_update_it_loses_the_task(trained):
    change = tensors(lambda n, t: {n: -t if "lora_B" in n else t})
    assert "0% of the answers" in quality.learned_task(fresh(), change(trained))


MINUTES = pytest.mark.minutes
SEEDS = [1, pytest.param(2, marks=MINUTES), pytest.param(4, marks=MINUTES)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_script_reaches_every_bar_with_room_to_spare(tmp_path, seed):
    rotated = f"    pairs = pairs[{16 * seed} :] + pairs[: {16 * seed}]\n" + ENCODED
    files = run_script(tmp_path, ("manual_seed(0)", f"manual_seed({seed})"), (ENCODED, rotated))
    result = measured(files)
    print(seed, result, json.loads(files["report.json"]))
    assert 3 * result.loss <= quality.TASK_BAR and result.exact >= 2 * quality.EXACT_BAR, result


@MINUTES
@pytest.mark.parametrize("name", WRONG)
def test_another_training_stays_above_the_bar(tmp_path, name):
    result = measured(run_script(tmp_path, (ENCODED, WRONG[name])))
    print(name, result)
    assert result.loss >= 1.2 * quality.FORMAT_BAR and result.exact == 0, result


def test_the_base_alone_stays_above_the_bar():
    records = quality.adapter_format(Random(0), 0)["records"]
    result = measure(None, records)
    print(result)
    assert result.loss >= 2 * quality.FORMAT_BAR and result.exact == 0
