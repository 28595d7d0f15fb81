"""`lora-script`: what is not the adapter that was asked for is rejected before it is loaded."""

import struct

import pytest
import torch

from course_pkg.grading.assignments.lora_script import cases
from course_pkg.grading.assignments.lora_script.submitted_adapter import Rejected, read_adapter
from tests.exercises.lora_script_run import (
    CONFIG,
    REPORT,
    WEIGHTS,
    configured,
    plain_files,
    reported,
    tensors,
)


def only_first(value):
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
    return lambda files: files | {WEIGHTS: struct.pack("<Q", length) + files[WEIGHTS][8:]}


SEE_ABOVE = "the adapter was rejected: see above"
HOOK = {"base_model_class": "Model", "parent_library": "my_package.evil"}
REJECTED = {
    "a merge scale": (configured(lora_alpha=32), "alpha is 32; expected 16"),
    "rsLoRA's scale": (configured(use_rslora=True), "use_rslora is True"),
    "another rank": (configured(r=4), "rank is 4; expected 8"),
    "other targets": (configured(target_modules=["q_proj"]), "target_modules is"),
    "targets as a regex": (configured(target_modules=".*(q|v)_proj"), "target_modules is"),
    "a trained head": (configured(modules_to_save=["lm_head"]), "modules_to_save is"),
    "DoRA": (configured(use_dora=True), "adapter_config.json is for DoRA; expected LoRA"),
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
    "the base": (tensors(lambda n, t: {n: t if "lora_A" in n else 0 * t}), "every lora_B is zero"),
    "NaN": (only_first(float("nan")), "NaN or infinite"),
    "infinity": (only_first(float("inf")), "NaN or infinite"),
    "double precision": (tensors(lambda n, t: {n: t[:0].double()}), "has the shape"),
    "whole numbers": (tensors(lambda n, t: {n: t.to(torch.int8)}), "dtype torch.int8"),
    "other shapes": (tensors(lambda n, t: {n: t[:-1]}), "has the shape"),
    "one layer less": (
        tensors(lambda n, t: {n: t} if ".29." not in n else {}),
        "has no 'base_model",
    ),
    "the base's weights": (
        tensors(
            lambda n, t: {n: t, n.replace("lora_A", "base").replace("lora_B", "b"): t.new_ones(1)}
        ),
        "is not of the adapter",
    ),
    "too large": (tensors(lambda n, t: {n: t.double()}), "adapter_model.safetensors has 3.7 MB"),
    "a huge header": (headed(2**40), "header of 1,099,511,627,776 bytes"),
    "a header past the end": (headed(60_000_000), "header of 60,000,000 bytes"),
    "a wrong header": (headed(77), "is damaged"),
    "nothing": (lambda f: f | {WEIGHTS: b""}, "has 0 bytes: it is not a safetensors file"),
    "no whole header": (lambda f: f | {WEIGHTS: bytes(7)}, "has 7 bytes: it is not a"),
    "cut": (lambda f: f | {WEIGHTS: f[WEIGHTS][:-4]}, "is damaged"),
    "a pickle": (added(adapter_model__bin=b"\x80\x04."), "is a pickle"),
    "pickled state": (added(optimizer__pt=b""), "is a pickle"),
    "code beside it": (added(modeling__py=b""), "'modeling.py' does not belong there"),
    "no weights": (without(WEIGHTS), "there is no adapter_model.safetensors"),
    "no config": (without(CONFIG), "there is no adapter_config.json"),
    "no folder": (lambda f: list(f.values()), "not a folder of files"),
    "texts": (lambda f: dict.fromkeys(f, "text"), "not a folder of files"),
}


def test_what_is_not_the_adapter_asked_for_is_rejected_with_the_reason():
    assert len(read_adapter(plain_files())) == 120
    told = {}
    for name, (change, reason) in REJECTED.items():
        files = change(plain_files())
        with pytest.raises(Rejected) as error:
            read_adapter(files)
        given = [cases.learned_format([], files)]
        given += [
            cases.learned_task([], files),
            cases.matching_report([], files),
        ]
        if reason not in str(error.value) or given != [str(error.value), *[SEE_ABOVE] * 2]:
            told[name] = (str(error.value), *given)
    assert told == {}


def test_a_report_without_its_numbers_is_rejected():
    for change, reason in (
        (reported(held_out_loss="0.1"), "no number 'held_out_loss'"),
        (reported(exact_match=True), "no number 'exact_match'"),
        (reported(held_out_loss=float("nan")), "held_out_loss is nan"),
        (lambda files: files | {REPORT: b"{}"}, "no number 'held_out_loss'"),
        (without(REPORT), "there is no report.json"),
    ):
        assert reason in cases.matching_report([], change(plain_files()))
