"""`lora-script`: the script's adapter earns every point, and changed numbers lose the right ones.

One training is shared by all tests here. Adapters that take a training of their own are in
test_lora_script_training.py, and files that are no adapter in test_lora_script_files.py.
"""

from random import Random

import pytest
from peft import LoraConfig

from course_pkg.grading.checks.lora_script import adapter_quality, student
from course_pkg.grading.checks.lora_script.submitted_adapter import read_adapter
from course_pkg.grading.contract.grading_session import GradingSession
from tests.exercises.lora_script_run import CONFIG, Files, reported, run_script, tensors

PROPERTIES = {"format", "task", "report"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Files:
    """The files that the notebook's own script writes: half a minute."""
    return run_script(tmp_path_factory.mktemp("script"))


def lost(files: Files) -> dict[str, str]:
    """The properties that an adapter loses, as a submission of one student, and why."""
    session = GradingSession("lora-script", "ada", b"k")
    assert session.inputs("adapter") == [{}]
    session.record("adapter", [{"value": files}])
    failures = session.verdict("adapter").failures
    return {name: failure.reason for name, failure in failures.items() if failure}


def fresh() -> list[tuple[str, str]]:
    """Tickets that are in no file."""
    return adapter_quality.adapter_format(Random(3), 0)["records"]


@pytest.mark.slow
@pytest.mark.model
class TestTheTrainedAdapter:
    def test_earns_every_point(self, trained):
        assert lost(trained) == {}

    def test_in_half_precision_and_as_peft_describes_it_is_accepted(self, trained, tmp_path):
        LoraConfig(
            r=8,
            lora_alpha=16,
            target_modules=["q_proj", "v_proj"],
            task_type="CAUSAL_LM",
            base_model_name_or_path="/home/ada/.cache/llm-course/smollm2-135m",
        ).save_pretrained(tmp_path)
        half = tensors(lambda name, tensor: {name: tensor.half()})(trained)
        described = half | {CONFIG: (tmp_path / CONFIG).read_bytes(), "README.md": b"a card"}
        assert adapter_quality.learned_task(fresh(), described) is None

    def test_with_other_numbers_in_the_report_loses_the_report(self, trained):
        for name in ("held_out_loss", "exact_match"):
            reason = adapter_quality.matching_report([], reported(**{name: 0.5})(trained))
            assert reason.startswith(f"{name} is 0.5 in your report; this adapter has ")

    def test_with_another_scale_in_its_numbers_loses_everything(self, trained):
        change = tensors(lambda n, t: {n: 8 * t if "lora_B" in n else t})
        reasons = lost(change(trained))
        assert set(reasons) == PROPERTIES
        assert "without an adapter it is 2." in reasons["format"]
        assert "no report counts" in reasons["report"]

    def test_with_the_opposite_update_loses_the_task(self, trained):
        change = tensors(lambda n, t: {n: -t if "lora_B" in n else t})
        assert "0% of the answers" in adapter_quality.learned_task(fresh(), change(trained))

    def test_measuring_leaves_the_base_as_it_was(self, trained):
        records = fresh()[:2]
        before = adapter_quality.measure(None, records)
        assert adapter_quality.measure(read_adapter(trained), records).loss < before.loss / 4
        assert adapter_quality.measure(None, records) == before


def test_a_folder_may_be_as_large_as_the_question_says():
    assert GradingSession("lora-script").questions["adapter"].artifact == student.FOLDER_BYTES
