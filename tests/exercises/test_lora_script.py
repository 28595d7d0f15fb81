"""`lora-script`: the script's adapter earns every point; what is not an adapter earns none.

One training is shared by all tests here. The wrong adapters are changes of its files; those that
take a training of their own are in test_lora_script_training.py.
"""

import json
import struct
from random import Random

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load, save
from torch.nn import functional as F

from course_pkg.grading.checks.lora_script import adapter_bars, adapter_files, student
from course_pkg.grading.checks.lora_script.adapter_files import Rejected, read_adapter
from course_pkg.grading.contract.session import Session
from course_pkg.sandbox.policy import module_masks

from .assignments import points_lost
from .lora_script_run import run_script

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
REPORT = "report.json"
PROPERTIES = {"format", "task", "report"}
Files = dict[str, bytes]


def plain_files() -> Files:
    """The files of an adapter as asked for, with random numbers: it reads well and knows nothing."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(shape, generator=generator)
        for name, shape in adapter_files.expected_shapes().items()
    }
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"]}
    report = {"held_out_loss": 0.1, "exact_match": 1.0}
    return {CONFIG: as_json(config), WEIGHTS: save(tensors), REPORT: as_json(report)}


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def configured(**settings: object):
    """A change of the configuration."""
    return lambda files: files | {CONFIG: as_json(json.loads(files[CONFIG]) | settings)}


def reported(**numbers: object):
    """A change of the report."""
    return lambda files: files | {REPORT: as_json(json.loads(files[REPORT]) | numbers)}


def tensors(change):
    """A change of the tensors: change(name, tensor) gives the new ones by name."""

    def changed(files: Files) -> Files:
        found = load(files[WEIGHTS])
        new = [item for name, tensor in found.items() for item in change(name, tensor).items()]
        return files | {WEIGHTS: save({name: t.contiguous() for name, t in new})}

    return changed


def only_first(value):
    """A change of the first number of every tensor."""

    def change(name, tensor):
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return {name: tensor}

    return tensors(change)


def added(**files: bytes):
    """Further files; two underscores stand for a dot."""
    return lambda old: old | {name.replace("__", "."): data for name, data in files.items()}


def without(name: str):
    return lambda files: {key: data for key, data in files.items() if key != name}


def headed(length: int):
    """A weights file that claims a header of this length."""
    return lambda files: files | {WEIGHTS: struct.pack("<Q", length) + files[WEIGHTS][8:]}


HOOK = {"base_model_class": "Model", "parent_library": "my_package.evil"}
REJECTED = {
    "a merge scale": (configured(lora_alpha=32), "alpha is 32; expected 16"),
    "rsLoRA's scale": (configured(use_rslora=True), "use_rslora is True"),
    "another rank": (configured(r=4), "rank is 4; expected 8"),
    "other targets": (configured(target_modules=["q_proj"]), "target_modules is"),
    "targets as a regex": (configured(target_modules=".*(q|v)_proj"), "target_modules is"),
    "a trained head": (configured(modules_to_save=["lm_head"]), "modules_to_save is"),
    "DoRA": (configured(use_dora=True), "rank is 8; expected 8|use_dora|DoRA"),
    "another method": (configured(peft_type="IA3"), "not implemented"),
    "no method": (lambda f: f | {CONFIG: b"{}"}, "peft_type=None"),
    "ranks by module": (configured(rank_pattern={"v_proj": 64}), "rank_pattern"),
    "a NaN as a setting": (configured(lora_alpha=float("nan")), "alpha"),
    "code": (configured(auto_mapping=HOOK), "names code in auto_mapping"),
    "a loader": (configured(loftq_config={"path": "/etc/passwd"}), "loftq_config"),
    "another base": (configured(base_model_name_or_path="../../gpt2"), "base is '../../gpt2'"),
    "no JSON": (lambda f: f | {CONFIG: b"\xff"}, "is not JSON"),
    "deep JSON": (lambda f: f | {CONFIG: b"[" * 9_999}, "is not JSON"),
    "a list": (lambda f: f | {CONFIG: b"[]"}, "is not a JSON object"),
    "a long config": (lambda f: f | {CONFIG: b" " * 30_000}, "expected at most 20 kB"),
    "the base": (tensors(lambda n, t: {n: t * ("lora_A" in n)}), "every lora_B is zero"),
    "NaN": (only_first(float("nan")), "NaN or infinite"),
    "infinity": (only_first(float("inf")), "NaN or infinite"),
    "double precision": (tensors(lambda n, t: {n: t[:0].double()}), "has the shape"),
    "whole numbers": (tensors(lambda n, t: {n: t.to(torch.int8)}), "dtype torch.int8"),
    "other shapes": (tensors(lambda n, t: {n: t[:-1]}), "has the shape"),
    "one layer less": (tensors(lambda n, t: {n: t} if ".29." not in n else {}), "has no 'base_model"),
    "the base's weights": (
        tensors(lambda n, t: {n: t, n.replace("lora_A", "base").replace("lora_B", "b"): t.new_ones(1)}),
        "is not of the adapter",
    ),
    "too large": (tensors(lambda n, t: {n: t.double()}), "adapter_model.safetensors has 3.7 MB"),
    "a huge header": (headed(2**40), "header of 1,099,511,627,776 bytes"),
    "a header past the end": (headed(60_000_000), "header of 60,000,000 bytes"),
    "a wrong header": (headed(77), "is damaged"),
    "nothing": (lambda f: f | {WEIGHTS: b""}, "header of 0 bytes"),
    "cut": (lambda f: f | {WEIGHTS: f[WEIGHTS][:-4]}, "is damaged"),
    "a pickle": (added(adapter_model__bin=b"\x80\x04."), "is a pickle"),
    "pickled state": (added(optimizer__pt=b""), "is a pickle"),
    "code beside it": (added(modeling__py=b""), "'modeling.py' does not belong there"),
    "no weights": (without(WEIGHTS), "there is no adapter_model.safetensors"),
    "no config": (without(CONFIG), "there is no adapter_config.json"),
    "no report": (without(REPORT), "there is no report.json"),
    "no folder": (lambda f: list(f.values()), "not a folder of files"),
    "texts": (lambda f: dict.fromkeys(f, "text"), "not a folder of files"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_is_not_the_adapter_asked_for_is_rejected_with_the_reason(name):
    change, reason = REJECTED[name]
    assert len(read_adapter(plain_files())) == 120
    with pytest.raises(Rejected, match=reason.replace("(", r"\(")):
        read_adapter(change(plain_files()))
    for compare in (
        adapter_bars.learned_format, adapter_bars.learned_task, adapter_bars.matching_report
    ):  # fmt: skip
        assert compare([], change(plain_files()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (reported(held_out_loss="0.1"), "no number 'held_out_loss'"),
        (reported(exact_match=True), "no number 'exact_match'"),
        (reported(held_out_loss=float("nan")), "held_out_loss is nan"),
        (lambda files: files | {REPORT: b"{}"}, "no number 'held_out_loss'"),
    ],
)
def test_a_report_without_its_numbers_is_rejected(change, reason):
    assert reason in adapter_bars.matching_report([], change(plain_files()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Files:
    """The files that the notebook's own script writes: half a minute."""
    return run_script(tmp_path_factory.mktemp("script"))


def lost(files: Files) -> dict[str, str]:
    """The properties that an adapter loses, as a submission of one student, and why."""
    session = Session("lora-script", "ada", b"k")
    assert session.inputs("adapter") == [{}]
    session.record("adapter", [{"value": files}])
    failures = session.verdict("adapter").failures
    return {name: failure.reason for name, failure in failures.items() if failure}


def fresh() -> list[tuple[str, str]]:
    """Tickets that are in no file."""
    return adapter_bars.adapter_format(Random(3), 0)["records"]


@pytest.mark.slow
@pytest.mark.model
class TestTheTrainedAdapter:
    def test_earns_every_point(self, trained):
        assert lost(trained) == {}

    def test_in_half_precision_and_as_peft_describes_it_is_accepted(self, trained, tmp_path):
        LoraConfig(
            r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM",
            base_model_name_or_path="/home/ada/.cache/llm-course/smollm2-135m",
        ).save_pretrained(tmp_path)  # fmt: skip
        half = tensors(lambda name, tensor: {name: tensor.half()})(trained)
        described = half | {CONFIG: (tmp_path / CONFIG).read_bytes(), "README.md": b"a card"}
        assert adapter_bars.learned_task(fresh(), described) is None

    def test_with_other_numbers_in_the_report_loses_the_report(self, trained):
        for name in ("held_out_loss", "exact_match"):
            reason = adapter_bars.matching_report([], reported(**{name: 0.5})(trained))
            assert reason.startswith(f"{name} is 0.5 in your report; this adapter has ")

    def test_with_another_scale_in_its_numbers_loses_everything(self, trained):
        change = tensors(lambda n, t: {n: 8 * t if "lora_B" in n else t})
        reasons = lost(change(trained))
        assert set(reasons) == PROPERTIES
        assert "without an adapter it is 2." in reasons["format"]
        assert "no report counts" in reasons["report"]

    def test_with_the_opposite_update_loses_the_task(self, trained):
        change = tensors(lambda n, t: {n: -t if "lora_B" in n else t})
        assert "0% of the answers" in adapter_bars.learned_task(fresh(), change(trained))

    def test_measuring_leaves_the_base_as_it_was(self, trained):
        records = fresh()[:2]
        before = adapter_bars.measure(None, records)
        assert adapter_bars.measure(read_adapter(trained), records).loss < before.loss / 4
        assert adapter_bars.measure(None, records) == before


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
    nlls, counts, rows = [], [], []
    with torch.inference_mode():
        for batch in batches:
            for i in range(len(batch["labels"])):
                one = {name: tensor[i : i + 1] for name, tensor in batch.items()}
                logits = model(one["input_ids"], one["attention_mask"]).logits
                for values, value in zip((nlls, counts), loss(logits, one["labels"]), strict=True):
                    values.append(value)
                labels = F.pad(one["labels"][:, 1:], (0, 1), value=-100)
                rows.append(((labels < 0) | (labels == logits.argmax(-1))).all())
    return sum(nlls) / sum(counts), torch.stack(rows).float().mean()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("lora", lora_with_peft),
        ("encode", encode_whole_conversation),
        ("collate", collate_with_pad_sequence),
        ("loss", loss_by_gather),
        ("step", step_that_counts_first),
        ("evaluate", evaluate_row_by_row),
    ],
)
def test_another_right_answer_keeps_every_point(name, answer):
    assert points_lost("lora-script", name, answer) == 0


def test_the_modules_that_would_answer_are_masked():
    masked = Session("lora-script").answers.assignment.masked
    assert {path.name for path in module_masks(masked, "")} == {"finetuning"}
    assert student.FOLDER_BYTES == Session("lora-script").questions["adapter"].artifact
