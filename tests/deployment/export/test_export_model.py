"""`course export`: adapters and models as files of other programs, whole or not at all."""

import errno
import json
import os
import re

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from course_pkg.adapters import LoRAConfig, PromptTuningConfig, adapt, merge_adapters, save
from course_pkg.adapters.injection import remove_adapters
from course_pkg.cli import app
from course_pkg.deployment.export import export, export_model
from course_pkg.deployment.export.gguf_file import read_gguf_file
from course_pkg.deployment.export.gguf_model import read_weights
from course_pkg.deployment.export.ollama import chat_parts, modelfile
from course_pkg.lm.load import load
from tests.tables import each_row

CONFIG = LoRAConfig(rank=2, alpha=4, target_modules=["q_proj", "v_proj"])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved_adapter(folder, config=CONFIG, base="tiny"):
    """A trained adapter in a folder; returns the model with the adapter merged."""
    model = adapt(load("tiny").model, config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, 0, 0.1, generator)
    save(model, folder)
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text()) | {"base_model_name_or_path": base}
    path.write_text(json.dumps(settings))
    if isinstance(config, LoRAConfig):
        merge_adapters(model)
        remove_adapters(model)
    return model


def course(*arguments):
    done = CliRunner().invoke(app, ["export", *map(str, arguments)])
    return done.exit_code, done.output


def failed(*arguments):
    """The code and the one line of a command that fails."""
    code, output = course(*arguments)
    assert output.count("\n") == 1 and output.startswith("error: "), output
    return code, output


def left():
    return sorted(os.listdir())


def test_an_adapter_becomes_a_gguf_file_with_the_adapter_merged(here):
    merged = saved_adapter(here / "My adapter")
    code, output = course("My adapter", "--type", "f32")
    assert code == 0
    weights = read_weights("my-adapter-f32.gguf")
    state = merged.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in weights.items())
    plain = load("tiny").model.state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(weights[name], plain[name])
    assert left() == ["My adapter", "my-adapter-f32.Modelfile", "my-adapter-f32.gguf"]
    first, *steps = output.splitlines()
    assert re.fullmatch(r"my-adapter-f32\.gguf: [\d.]+ kB", first)
    assert [step.split()[0] for step in steps] == ["llama.cpp:", "Ollama:", "LM"]
    assert "ollama create my-adapter -f my-adapter-f32.Modelfile" in output
    chat = (here / "my-adapter-f32.Modelfile").read_text()
    assert chat.startswith("FROM ./my-adapter-f32.gguf\n")


@pytest.mark.parametrize(("type", "code"), [("f16", 1), ("q8_0", 7), ("q4_0", 2)])
def test_a_model_by_name_becomes_a_gguf_file_of_each_type(type, code, here):
    assert course("tiny", "--type", type, "--output", "a.gguf")[0] == 0
    assert read_gguf_file("a.gguf").metadata["general.file_type"].value == code


def test_a_hugging_face_folder_has_the_merged_model_and_its_tokenizer(here):
    merged = saved_adapter(here / "mine")
    code, output = course("mine", "--format", "hf", "--output", "out")
    assert code == 0 and "course serve --model out" in output
    model = AutoModelForCausalLM.from_pretrained("out")
    state = merged.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained("out")
    assert tokenizer.chat_template == load("tiny").tokenizer.chat_template
    assert left() == ["mine", "out"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_hugging_face_folder_has_the_type_of_the_models_own_weights(dtype, here):
    model, tokenizer = load("tiny")
    model.to(dtype).save_pretrained("own")
    tokenizer.save_pretrained("own")
    saved_adapter(here / "mine", base=str(here / "own"))
    assert course("mine", "--format", "hf", "--output", "out")[0] == 0
    exported = AutoModelForCausalLM.from_pretrained("out")
    assert exported.dtype == dtype
    assert torch.equal(exported.model.norm.weight.float(), load("own").model.model.norm.weight)
    size = os.path.getsize("out/model.safetensors") / os.path.getsize("own/model.safetensors")
    assert 0.99 < size < 1.01


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_base_is_one_line_in_each_format(here):
    """As in unsloth's models with bitsandbytes' 4 bits."""
    from transformers import BitsAndBytesConfig

    load("tiny").model.save_pretrained("full")
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = AutoModelForCausalLM.from_pretrained("full", quantization_config=four)
    model.save_pretrained("bnb")
    load("tiny").tokenizer.save_pretrained("bnb")
    saved_adapter(here / "mine", base=str(here / "bnb"))
    before = left()
    for source in ("bnb", "mine"):
        for format in ("gguf", "hf", "onnx"):
            code, output = failed(source, "--format", format)
            assert code == 2 and "bnb are quantized (bitsandbytes): give the 16-bit model" in output
    assert left() == before


def test_an_adapter_of_the_output_matrix_unties_it_in_each_format(here):
    """Otherwise a reader would use the embeddings in its place, without an error."""
    merged = saved_adapter(here / "mine", LoRAConfig(rank=2, target_modules=["lm_head"]))
    assert course("mine", "--format", "hf", "--output", "out")[0] == 0
    assert course("mine", "--type", "f32", "--output", "a.gguf")[0] == 0
    model = AutoModelForCausalLM.from_pretrained("out")
    weights = read_weights("a.gguf")
    for weight in (model.lm_head.weight, weights["lm_head.weight"]):
        assert torch.equal(weight, merged.lm_head.weight)
    embeddings = load("tiny").model.model.embed_tokens.weight
    for weight in (model.model.embed_tokens.weight, weights["model.embed_tokens.weight"]):
        assert torch.equal(weight, embeddings)


def test_onnx_is_written_by_its_own_module(here, monkeypatch):
    def export_onnx(model, tokenizer, folder):
        (folder / "model.onnx").write_bytes(b"x")

    monkeypatch.setattr("course_pkg.deployment.export.onnx_model.export_onnx", export_onnx)
    assert course("tiny", "--format", "onnx")[0] == 0
    assert left() == ["tiny-onnx"]
    assert sorted(os.listdir("tiny-onnx")) == [export_model.WRITTEN, "model.onnx"]


def test_nothing_is_replaced_without_force(here):
    saved_adapter(here / "mine")
    (here / "a.gguf").write_text("old")
    assert failed("mine", "--output", "a.gguf")[0] == 2
    assert (here / "a.gguf").read_text() == "old"
    assert course("mine", "--output", "a.gguf", "--force")[0] == 0
    (here / "b.Modelfile").write_text("old")
    assert "b.Modelfile exists: give --force" in failed("mine", "--output", "b.gguf")[1]
    assert course("mine", "--format", "hf", "--output", "out")[0] == 0
    assert "out exists: give --force" in failed("mine", "--format", "hf", "--output", "out")[1]
    assert course("mine", "--format", "hf", "--output", "out", "--force")[0] == 0


def mine(name, text="years"):
    return lambda folder: (folder / name).write_text(text)


@each_row(
    ("change", "named"),
    [
        (mine("thesis"), "thesis"),
        (mine("config.json", "{}"), "config.json"),
        (mine(export_model.WRITTEN, "[]"), export_model.WRITTEN),
        (
            lambda folder: (
                export("tiny", format="hf", output=folder, force=True),
                mine("notes.md")(folder),
            ),
            "notes.md",
        ),
        (
            lambda folder: (
                export("tiny", format="hf", output=folder, force=True),
                mine("config.json")(folder),
            ),
            "config.json",
        ),
    ],
)
def test_force_never_deletes_a_folder_with_anything_that_it_did_not_write(change, named, tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    change(folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    code, output = failed("tiny", "--format", "hf", "--output", folder, "--force")
    assert code == 2 and f"is not an exported model: {named} is not of `course export`" in output
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert "is a folder" in failed("tiny", "--output", folder, "--force")[1]


FULL = OSError(errno.ENOSPC, "No space left on device")
FULL_FOR_SAFETENSORS = SafetensorError("I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("format", "error"), [("gguf", FULL), ("hf", FULL), ("hf", FULL_FOR_SAFETENSORS)]
)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(format, error, here, monkeypatch):
    assert course("tiny", "--format", format, "--output", "out")[0] == 0
    before = left()

    def full(*arguments):
        raise error

    target = "course_pkg.deployment.export.gguf_model.write_gguf_file"
    monkeypatch.setattr(export_model, "_save_pretrained", full)
    monkeypatch.setattr(target, full)
    code, output = failed("tiny", "--format", format, "--output", "out", "--force")
    assert code == 4 and "the disk is full" in output
    assert left() == before


def test_a_missing_folder_and_an_adapter_of_another_model_are_one_line(here, monkeypatch):
    saved_adapter(here / "mine")
    other = load("tiny").model
    other.model.layers = other.model.layers[:1]
    other.config.num_hidden_layers = 1
    other.save_pretrained("short")
    load("tiny").tokenizer.save_pretrained("short")
    code, output = failed("mine", "--base", "short")
    assert code == 2 and "can't be merged into short" in output
    assert "there is no folder" in failed("tiny", "--output", "none/a.gguf")[1]
    monkeypatch.setattr(export_model.os, "access", lambda *arguments: False)
    assert "can't be written" in failed("tiny", "--output", "a.gguf")[1]


def test_what_is_not_possible_is_one_line_before_anything_is_written(here):
    saved_adapter(here / "prompt", PromptTuningConfig(4))
    saved_adapter(here / "nameless", base=None)
    saved_adapter(here / "other", base="smollm3")
    (here / "damaged").mkdir()
    (here / "damaged" / "adapter_config.json").write_text("{")
    cases = {
        ("tiny", "--format", "pt"): "expected gguf, hf, onnx",
        ("tiny", "--type", "q2_k"): "expected f32, f16, q4_0, q8_0",
        ("tiny", "--format", "hf", "--type", "f16"): "only for --format gguf",
        ("tiny", "--base", "tiny"): "not an adapter: leave --base out",
        ("prompt",): "PROMPT_TUNING, which can't be merged",
        ("nameless",): "does not name its model: give it with --base",
        ("other",): 'there is no model "smollm3"',
        ("damaged",): "is not a PEFT configuration",
        ("no-such-model",): 'there is no model "no-such-model"',
    }
    before = left()
    for arguments, message in cases.items():
        code, output = failed(*arguments)
        assert code == 2 and message in output, output
    assert left() == before
    assert course("nameless", "--base", "tiny")[0] == 0


def rendered(text, messages):
    """What Ollama makes of the Modelfile's template, which has no more of Go than this."""
    template = re.search(r'TEMPLATE """(.*?)"""', text, re.DOTALL)[1]
    [branch, end] = re.fullmatch(
        r"{{ range .Messages }}(.*){{ end }}{{ end }}(.*)", template, re.DOTALL
    ).groups()
    branches = dict(
        re.findall(r'{{ (?:else )?if eq .Role "(\w+)" }}((?:(?!{{ else).)*)', branch, 16)
    )
    system = re.search(r'SYSTEM """(.*?)"""', text, re.DOTALL)
    if system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system[1]}, *messages]
    written = [branches[m["role"]].replace("{{ .Content }}", m["content"]) for m in messages]
    return "".join(written) + end


SMOLLM = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are SmolLM<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ROLES = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[Q] {{ m['content'] }} [/Q]"
    "{% elif m['role'] == 'system' %}<<{{ m['content'] }}>>{% else %} {{ m['content'] }}</s>"
    "{% endif %}{% endfor %}"
)
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Short."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2 + 2?"},
    ],
]


def test_ollamas_template_gives_the_prompt_of_the_tokenizers_and_its_system_prompt(tiny):
    for chat in CHATS:
        for template in (None, SMOLLM, ROLES):
            tokenizer = tiny.tokenizer
            tokenizer.chat_template = template or tokenizer.chat_template
            expected = tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=True
            )
            assert rendered(modelfile(tokenizer, "a.gguf"), chat) == expected
    tiny.tokenizer.chat_template = SMOLLM
    assert 'SYSTEM """You are SmolLM"""\n' in modelfile(tiny.tokenizer, "a.gguf")


def test_every_export_stops_where_the_template_ends_an_answer(tiny, here):
    """Qwen2.5's base models end a text with another token than their template does."""
    model, tokenizer = tiny
    tokenizer.eos_token = "<|endoftext|>"
    model.config.eos_token_id = model.generation_config.eos_token_id = 256
    model.save_pretrained("base")
    tokenizer.save_pretrained("base")
    for format in ("gguf", "hf"):
        assert course("base", "--format", format)[0] == 0
    stops = [
        line for line in (here / "base-f16.Modelfile").read_text().splitlines() if "stop" in line
    ]
    assert stops == ['PARAMETER stop "<|endoftext|>"', 'PARAMETER stop "<|im_end|>"']
    written = read_gguf_file("base-f16.gguf").metadata
    ids = [written[f"tokenizer.ggml.{name}_token_id"].value for name in ("eos", "eot")]
    assert ids == [256, 258]
    saved = json.loads((here / "base-hf" / "generation_config.json").read_text())
    assert saved["eos_token_id"] == [256, 258]


@each_row("token", ['<|x"\nSYSTEM """lies"""\n|>', "<|a\nFROM evil|>", '<|"|>'])
def test_a_token_with_quotes_or_line_breaks_makes_no_modelfile(token):
    tokenizer = load("tiny").tokenizer
    tokenizer.add_special_tokens({"eos_token": token})
    assert modelfile(tokenizer, "a.gguf") is None
    assert modelfile(load("tiny").tokenizer, "a\nFROM b.gguf") is None


UNLIKE = {
    "counts messages": "{% for m in messages %}{{ loop.index }}{{ m['content'] }}{% endfor %}",
    "refuses system": "{{ raise_exception('no') if messages[0]['role'] == 'system' else '' }}",
    "drops messages": "{{ messages[-1]['content'] }}",
    "quotes": "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ '\"' }}",
    "braces": "{% for m in messages %}{{ '{{' + m['content'] }}{% endfor %}",
}


@pytest.mark.parametrize("template", UNLIKE.values(), ids=UNLIKE)
def test_a_template_that_is_not_message_by_message_is_left_to_the_user(template, tiny, here):
    tiny.tokenizer.chat_template = template
    assert chat_parts(tiny.tokenizer) is None or modelfile(tiny.tokenizer, "a.gguf") is None
    tiny.model.save_pretrained("model")
    tiny.tokenizer.save_pretrained("model")
    code, output = course("model")
    assert code == 0 and "the chat template needs you" in output
    assert left() == ["model", "model-f16.gguf"]
