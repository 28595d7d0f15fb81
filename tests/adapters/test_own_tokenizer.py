"""What stands beside an adapter: its tokenizer and its chat template are used wherever it is."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from course_pkg.adapters.adapter_io import PREFIX, load_adapter, save_adapter
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.own_tokenizer import own_tokenizer
from course_pkg.deployment.chat_model import LocalChat
from course_pkg.deployment.export.merged import load_merged
from course_pkg.evaluation.local_model import load_model
from course_pkg.lm.load import load
from course_pkg.lm.tiny import tiny_tokenizer
from course_pkg.serving.engine import Engine
from tests.adapters.builders import WEIGHTS, adapted
from tests.refusals import require_refusals
from tests.tables import each_row

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{{ '<|endoftext|>' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
HI = [{"role": "user", "content": "Hi"}]


def prompt(tokenizer):
    return tokenizer.apply_chat_template(HI, tokenize=False, add_generation_prompt=True)


def with_template(folder):
    """The whole tokenizer, as other trainers save it."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def template_alone(folder):
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def template_in_settings(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


@pytest.fixture
def adapter(tmp_path):
    save_adapter(adapted(LoRAConfig(rank=2, target_modules=["q_proj"])), tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "tiny"
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.mark.parametrize("write", [with_template, template_alone, template_in_settings])
def test_an_adapters_template_is_used_merged_evaluated_chatted_with_and_served(adapter, write):
    write(adapter)
    wanted = "[user] Hi<|endoftext|>[assistant] "
    merged, tokenizer = load_merged(adapter)
    evaluated = load_model("tiny", adapter)
    assert prompt(tokenizer) == prompt(evaluated.tokenizer) == wanted
    for model in (merged, evaluated.model):
        assert set(model.generation_config.eos_token_id) == {256, 258}
    engine = Engine(*load("tiny"), blocks=8, adapters={"mine": adapter})
    assert engine.chat_templates == {"mine": TEMPLATE} and engine.eos == {256, 258}
    chat = LocalChat(engine, "mine", {"max_tokens": 4}, "mine")
    assert prompt(chat.tokenizer) == wanted != prompt(engine.tokenizer)
    engine.use_template("{{ messages[0].content }}")  # as --chat-template asks for
    assert engine.chat_templates == {} and prompt(engine.tokenizer) == "Hi"


def test_without_files_of_its_own_the_models_tokenizer_stays(adapter):
    tokenizer = tiny_tokenizer()
    assert own_tokenizer(adapter, tokenizer, 259) is tokenizer


def grown(folder):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(folder)


def exchanged(folder):
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    text = (folder / "tokenizer.json").read_text()
    text = text.replace("<|im_start|>", "<|x|>").replace("<|im_end|>", "<|im_start|>")
    (folder / "tokenizer.json").write_text(text.replace("<|x|>", "<|im_end|>"))


def endless(folder):
    tiny_tokenizer().save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").symlink_to("/dev/zero")


def lone(folder):
    (folder / "added_tokens.json").write_text("{}")


@each_row(
    ("write", "rows", "says"),
    [
        (grown, 259, "260 tokens, the model has 259 embeddings: .* new tokens"),
        (exchanged, 259, r"other ids than the model's, such as for '<\|im_"),
        (endless, 259, "chat_template.jinja is not a file"),
        (lone, 259, "added_tokens.json without tokenizer.json"),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(tmp_path, write, rows, says):
    write(tmp_path)
    require_refusals((tmp_path, tiny_tokenizer(), rows, says), of=own_tokenizer)


def test_tokens_in_spare_rows_are_used_alone_and_refused_beside_others(adapter):
    grown(adapter)
    model, tokenizer = load("tiny")
    model.resize_token_embeddings(264)
    assert own_tokenizer(adapter, tokenizer, 264)("<new>").input_ids == [259]
    with pytest.raises(ValueError, match="adapter 'mine' has 1 tokens of its own"):
        Engine(model, tokenizer, blocks=8, adapters={"mine": adapter})


ROWS = torch.arange(259 * 64.0).view(259, 64)


@each_row(
    ("name", "change", "says"),
    [
        ("model.embed_tokens.base_layer", lambda w: w, None),
        ("model.embed_tokens.base_layer", lambda w: w.bfloat16(), None),
        ("model.embed_tokens", lambda w: w, None),
        ("lm_head", lambda w: w, None),
        ("model.embed_tokens.base_layer", lambda w: w + ROWS, "which is not this model's"),
        (
            "model.embed_tokens",
            lambda w: torch.cat([w, w[:1]]),
            r"\(260, 64\), which .*\(259, 64\)",
        ),
        ("model.norm", lambda w: w, r"found model\.norm\.weight"),
    ],
)
def test_copies_of_the_embeddings_in_an_adapters_file_are_compared(tmp_path, name, change, says):
    model = load("tiny").model
    inject(model, LoRAConfig(rank=1, target_modules=["q_proj"]))
    save_adapter(model, tmp_path)
    own = load("tiny").model.get_input_embeddings().weight.detach()
    tensors = load_file(tmp_path / WEIGHTS)
    tensors[f"{PREFIX}{name}.weight"] = change(own).contiguous()
    save_file(tensors, tmp_path / WEIGHTS)
    fresh: nn.Module = load("tiny").model
    if name.endswith("base_layer") and says is None and change(own).dtype == torch.bfloat16:
        fresh = fresh.bfloat16()
    if says is None:
        load_adapter(fresh, tmp_path)
    else:
        require_refusals((fresh, tmp_path, says), of=load_adapter)
