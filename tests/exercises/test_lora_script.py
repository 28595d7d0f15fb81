"""`lora-script`: the script's adapter earns every point, and changed numbers lose the right ones.

One training is shared by all tests here. Adapters that take a training of their own are in
test_lora_script_training.py, and files that are no adapter in test_lora_script_files.py.
"""

from random import Random

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F

from course_pkg.grading.checks.lora_script import adapter_quality, student
from course_pkg.grading.checks.lora_script.submitted_adapter import read_adapter
from course_pkg.grading.contract.grading_session import GradingSession
from tests.exercises.assignments import earning_everything
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


def lora_with_peft(model, rank, alpha, targets):
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets))


def encode_whole_conversation(messages, answer, tokenizer):
    """Two renderings of the template, as tensors."""
    whole = tokenizer.apply_chat_template(
        [*messages, {"role": "assistant", "content": answer}], tokenize=False
    )
    before = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor(tokenizer(whole[: -len("\n")], add_special_tokens=False).input_ids)
    labels = ids.clone()
    labels[: len(tokenizer(before, add_special_tokens=False).input_ids)] = -100
    return ids, labels


def collate_with_pad_sequence(rows, pad_token_id):
    pad = torch.nn.utils.rnn.pad_sequence
    ids, labels = zip(*((torch.tensor(i), torch.tensor(y)) for i, y in rows), strict=True)
    return {
        "input_ids": pad(list(ids), True, pad_token_id),
        "attention_mask": pad([torch.ones_like(i).bool() for i in ids], True).int(),
        "labels": pad(list(labels), True, -100),
    }


def loss_by_gather(logits, labels):
    real = labels[:, 1:] != -100
    costs = -logits[:, :-1].double().log_softmax(-1)
    costs = costs.gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0]
    return (costs * real).sum(), int(real.sum())


def step_that_counts_first(model, optimizer, batches, loss):
    """Known counts, so that each micro-batch's gradient is already a part of the mean's."""
    model.train()
    total = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    mean = 0.0
    for batch in batches:
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        part = loss(logits, batch["labels"])[0] / total
        part.backward()
        mean += part.detach()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return mean


def evaluate_row_by_row(model, batches, loss):
    model.train(False)
    parts = []
    rows = []
    with torch.inference_mode():
        for batch in batches:
            for i in range(len(batch["labels"])):
                one = {name: tensor[i : i + 1] for name, tensor in batch.items()}
                logits = model(one["input_ids"], one["attention_mask"]).logits
                parts.append(loss(logits, one["labels"]))
                labels = F.pad(one["labels"][:, 1:], (0, 1), value=-100)
                rows.append(((labels < 0) | (labels == logits.argmax(-1))).all())
    nlls, counts = zip(*parts, strict=True)
    return sum(nlls) / sum(counts), torch.stack(rows).float().mean()


OTHERS = {
    "lora": [lora_with_peft],
    "encode": [encode_whole_conversation],
    "collate": [collate_with_pad_sequence],
    "loss": [loss_by_gather],
    "step": [step_that_counts_first],
    "evaluate": [evaluate_row_by_row],
}
test_another_right_answer_keeps_every_point = earning_everything("lora-script", OTHERS)


def test_a_folder_may_be_as_large_as_the_question_says():
    assert GradingSession("lora-script").questions["adapter"].artifact == student.FOLDER_BYTES
