"""A model's files are read whole or refused; nothing that lies beside them runs or fills memory."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from course_pkg.acceleration.quantization.gptq_files import is_gptq
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import save
from course_pkg.lm import model_folder
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.encoder import load_encoder
from course_pkg.lm.load import load
from course_pkg.lm.model_errors import ModelError
from tests.refusals import require_refusals
from tests.tables import each_row

MLP = "model.layers.1.mlp.down_proj.weight"
Q = "model.layers.0.self_attn.q_proj"


def saved(folder, change=lambda tensors: tensors):
    for each in load("tiny"):
        each.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    return folder


def edit(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def quantized(tensors):
    """AutoGPTQ's tensors of one layer, which config.json says nothing of."""
    weight = tensors.pop(f"{Q}.weight")
    return tensors | {f"{Q}.qweight": weight.to(torch.int32)}


@each_row(
    ("change", "says"),
    [
        (
            lambda t: {f"_orig_mod.{k}": v for k, v in t.items()},
            r"lack lm_head\.weight and 20 more tensors; .* no _orig_mod\.model\.embed_tokens",
        ),
        (lambda t: {k: v for k, v in t.items() if k != MLP}, f"they lack {MLP};"),
        (
            lambda t: {
                f"base_model.model.{k.replace('q_proj', 'q_proj.base_layer')}": v
                for k, v in t.items()
            },
            f"unmerged adapter in {Q} and 1 more module",
        ),
        (quantized, rf"they lack {Q}\.weight; the model has no {Q}\.qweight"),
        (lambda t: t | {MLP: torch.ones(64, 32)}, rf"{MLP} has shape \(64, 32\), expected \(64, 1"),
        (lambda t: t | {"model.extra": torch.ones(1)}, "the model has no model.extra"),
    ],
)
def test_a_tensor_that_is_missing_unknown_or_of_another_shape_is_named(tmp_path, change, says):
    require_refusals((saved(tmp_path, change), says), of=load, errors=ModelError)


def test_what_old_programs_stored_too_is_left_out(tmp_path):
    derived = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(8) for n in (0, 1)}
    folder = saved(
        tmp_path, lambda t: t | derived | {"lm_head.weight": t["model.embed_tokens.weight"].clone()}
    )
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(load(folder).model(ids).logits, load("tiny").model(ids).logits)


def test_an_encoder_may_lack_its_pooler_but_no_layer(tmp_path):
    config = BertConfig(
        vocab_size=32,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
    )
    BertModel(config).save_pretrained(tmp_path)
    load("tiny").tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {k: v for k, v in load_file(file).items() if not k.startswith("pooler.")}
    save_file(tensors | {"cls.bias": torch.ones(1)}, file, metadata={"format": "pt"})
    assert load_encoder(tmp_path).layers == 2
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    require_refusals(
        (tmp_path, r"they lack encoder\.layer\.1\.output\.dense\.weight"),
        of=load_encoder,
        errors=ModelError,
    )


def test_an_adapter_is_no_model(tmp_path):
    model = load("tiny").model
    inject(model, LoRAConfig(rank=1))
    save(model, saved(tmp_path))
    require_refusals((tmp_path, "has an adapter .*give its model here"), of=load, errors=ModelError)


def code_of_its_own(folder, ran):
    """A model and a tokenizer whose configs name code, which writes a file."""
    saved(folder)
    code = f"open({str(ran)!r}, 'w').close()\nclass Config: pass\nclass Tokenizer: pass\n"
    (folder / "own.py").write_text(code)
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Config"}
    edit(folder / "config.json", auto_map=names, model_type="own")
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Tokenizer", None]})
    return folder


def test_code_in_a_models_folder_never_runs_whatever_stands_in_the_input(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # what a pipe may hold
    ran = tmp_path / "ran"
    folder = tmp_path / "model"
    folder.mkdir()
    code_of_its_own(folder, ran)
    require_refusals((folder, "needs code of its own"), of=load, errors=ModelError)
    edit(folder / "config.json", model_type="llama")  # then the tokenizer's is left
    load(folder)
    assert not ran.exists()


def device(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/zero")

    return change


def setting(**changes):
    return lambda folder: edit(folder / "config.json", **changes)


def sparse(folder):
    """A tokenizer of a terabyte, which takes no room on the disk."""
    os.truncate(folder / "tokenizer.json", 10**12)


@each_row(
    ("change", "says"),
    [
        (device("config.json"), "config.json"),
        (device("tokenizer_config.json"), "tokenizer_config.json is not a file"),
        (device("model.safetensors"), "model.safetensors is not a file"),
        (device("chat_template.jinja"), "chat_template.jinja is not a file"),
        (sparse, r"tokenizer.json has 1 TB, at most 268 MB are read"),
        (setting(num_hidden_layers=10**9), r"num_hidden_layers 1000000000, for which .* kB of"),
        (setting(vocab_size=10**9), r"embedding of 1000000000 × 64 numbers"),
        (lambda folder: (folder / "config.json").write_text("[" * 10**6), "cannot be read"),
    ],
)
def test_files_that_never_end_or_fill_the_memory_are_refused_by_every_reader(
    tmp_path, change, says
):
    change(saved(tmp_path))
    is_gptq(tmp_path)
    require_refusals((tmp_path, says), of=load, errors=ModelError)
    if "tokenizer" not in says and "jinja" not in says:
        require_refusals((tmp_path, "."), of=Decoder.from_folder, errors=ModelError)


def test_every_automatic_class_of_transformers_is_told_to_run_no_code():
    package = model_folder.__file__.rsplit("/", 2)[0]
    found = []
    for folder, _, names in os.walk(package):
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(".py"):
                continue
            with open(path, encoding="utf-8") as file:
                text = file.read()
            for part in text.split("Auto")[1:]:
                call = part.partition(")")[0]
                if ".from_pretrained(" in call.split("\n")[0] and "trust_remote_code" not in call:
                    found.append(f"{path}: Auto{call}")
    known = [each for each in found if "gguf_file" not in each]  # SmolLM2's, which has a checksum
    assert known == []


@pytest.mark.parametrize("own", [None, 256, [256, 258]])
def test_generation_also_stops_where_the_chat_template_ends_an_answer(tmp_path, own):
    saved(tmp_path)
    edit(tmp_path / "tokenizer_config.json", eos_token="<|endoftext|>")
    edit(tmp_path / "config.json", eos_token_id=own)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": own}))
    ends = load(tmp_path).model.generation_config.eos_token_id
    assert set(ends if isinstance(ends, list) else [ends]) == {258, *([256] if own else [])}
