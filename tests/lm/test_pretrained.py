"""Reading checkpoints, fitting their tensors, and adapters that are still in a model.

A model with an unmerged adapter is refused, and the message's advice works. Both libraries.
"""

import peft
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import merge_adapters, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt
from course_pkg.adapters.prefixes import PrefixTuningConfig
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.model_errors import CorruptModelError, ModelError
from course_pkg.lm.pretrained import fitted, read_folder
from course_pkg.lm.tiny import tiny_model


@pytest.fixture
def folder(tmp_path):
    """The tiny model, as `save_pretrained` writes it in several files."""
    tiny_model().save_pretrained(tmp_path, max_shard_size="100KB")
    return tmp_path


def test_every_tensor_of_every_file_that_the_index_names_is_read(folder):
    _, tensors = read_folder(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    expected = tiny_model().state_dict()
    expected.pop("lm_head.weight")  # tied
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
    save_file({"adapter": torch.ones(1)}, folder / "adapter_model.safetensors")
    assert "adapter" not in read_folder(folder)[1]


@pytest.mark.parametrize("missing", ["config.json", "*.safetensors"])
def test_a_folder_without_config_or_weights(folder, missing):
    for file in folder.glob(missing):
        file.unlink()
    with pytest.raises(
        ModelError, match=r"is not a checkpoint: expected a folder with config.json"
    ):
        Decoder.from_folder(folder)


def test_a_missing_shard_is_named(folder):
    shard = min(folder.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(CorruptModelError, match=f"lacks {shard.name}, which model.safetensors"):
        Decoder.from_folder(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", ": copy it again"),
        ("config.json", "[1]", "config.json is not a dictionary"),
        ("model.safetensors.index.json", "{}", "weight_map"),
        ("model-00001-*.safetensors", "truncated", ": copy it again"),
    ],
)
def test_a_broken_file(folder, name, content, message):
    min(folder.glob(name)).write_text(content)
    with pytest.raises(CorruptModelError, match=f"cannot be read .*{message}"):
        Decoder.from_folder(folder)


SHAPES = {"embed_tokens.weight": (5, 2), "norm.weight": (2,)}
TENSORS = {"model.embed_tokens.weight": torch.ones(5, 2), "model.norm.weight": torch.ones(2)}


def test_stored_rope_frequencies_and_a_second_copy_of_tied_embeddings_are_left_out():
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(1)}
    again = {"lm_head.weight": torch.ones(5, 2)}
    assert fitted(TENSORS | extra | again, SHAPES, tied=True).keys() == SHAPES.keys()
    tensors = TENSORS | {"lm_head.weight": torch.zeros(5, 2)}
    with pytest.raises(CorruptModelError, match="but the config ties them: set tie_word_embedd"):
        fitted(tensors, SHAPES, tied=True)


def test_tensors_that_do_not_fit(subtests):
    for tensors, message in (
        ({"model.norm.weight": torch.ones(2)}, "lacks embed_tokens.weight: copy it again"),
        ({}, "lacks embed_tokens.weight and 1 more tensor: copy it again"),
        (TENSORS | {"a": torch.ones(1)}, "the decoder has no a: give a checkpoint that is not"),
        (TENSORS | {"lm_head.weight": torch.ones(5, 2)}, "the decoder has no lm_head.weight"),
        (
            TENSORS | {"model.norm.weight": torch.ones(3)},
            r"norm.weight has shape \(3,\), expected \(2,\): config.json belongs to another",
        ),
    ):
        with subtests.test(message), pytest.raises(CorruptModelError, match=message):
            fitted(tensors, SHAPES, tied=False)


# ---------------------------------------------------------------- unmerged adapters

IDS = torch.tensor([[1, 2, 3]])
Q_PROJ = "model.layers.0.self_attn.q_proj and 1 more module"


def base(tied=True):
    if tied:
        return tiny_model()
    torch.manual_seed(0)
    settings = tiny_model().config.to_dict() | {"tie_word_embeddings": False}
    return LlamaForCausalLM(type(tiny_model().config)(**settings)).eval()


def randomized(model):
    """The model with random numbers in its adapter, so that it has an effect."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "ia3_" in name:
            parameter.data.normal_(std=0.3, generator=generator)
        elif "modules_to_save" in name or "copies" in name:
            parameter.data.mul_(1.5)
    return model.eval()


def peft_model(config, tied=True):
    return randomized(peft.get_peft_model(base(tied), config))


def refused(model, message, engine=None):
    """The decoder refuses the model; engine: whether the message names the engine instead."""
    with pytest.raises(ModelError, match=message) as raised:
        Decoder.from_transformers(model)
    if engine is not None:
        assert ("give the engine the model without it" in str(raised.value)) == engine


def require_same_logits(model, expected):
    with torch.no_grad():
        assert torch.allclose(Decoder.from_transformers(model)(IDS), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "where", "engine"),
    [
        (LoRAConfig(rank=2, target_modules=["q_proj"]), Q_PROJ, True),
        (LoRAConfig(rank=2, target_modules=["lm_head"]), "lm_head", False),
        (LoRAConfig(rank=2, target_modules=["embed_tokens"]), "model.embed_tokens", False),
        (
            LoRAConfig(2, target_modules=r".*0\.self_attn\.q_proj", modules_to_save=["model.norm"]),
            Q_PROJ,
            False,
        ),
        (DoRAConfig(rank=2, target_modules=["q_proj"]), Q_PROJ, False),
        (IA3Config(target_modules=["q_proj"], feedforward_modules=[]), Q_PROJ, False),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_of_the_course_is_refused_until_it_is_merged_and_removed(
    config, where, engine, tied
):
    model = randomized(adapt(base(tied), config))
    with torch.no_grad():
        expected = model(IDS).logits
    found = f"has an unmerged adapter in {where}: call merge_adapters"
    refused(model, found, engine)
    merge_adapters(model)
    refused(model, found)  # its tensors are still those of the base
    remove_adapters(model)
    if tied and where in ("lm_head", "model.embed_tokens"):  # the message says to do so
        refused(model, "set tie_word_embeddings to false")
        model.config.tie_word_embeddings = False
    require_same_logits(model, expected)


@pytest.mark.parametrize(
    ("config", "where", "engine"),
    [
        (peft.LoraConfig(r=2, target_modules=["q_proj"]), Q_PROJ, True),
        (peft.LoraConfig(r=2, target_modules=["lm_head"]), "lm_head", False),
        (
            peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]),
            "model.layers.0.self_attn.q_proj and 2 more modules",
            False,
        ),
        (peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True), Q_PROJ, False),
        (peft.IA3Config(target_modules=["q_proj"], feedforward_modules=[]), Q_PROJ, False),
    ],
)
def test_a_peft_model_is_refused_until_it_is_merged(config, where, engine):
    model = peft_model(config, tied=False)
    with torch.no_grad():
        expected = model(IDS).logits
    for given in (model, model.base_model.model):
        refused(given, f"has an unmerged adapter in {where}: call merge_and_unload", engine)
    require_same_logits(model.merge_and_unload(), expected)


@pytest.mark.parametrize("targets", [["lm_head"], ["embed_tokens", "q_proj"]])
def test_peft_cannot_merge_into_one_of_two_tied_modules(targets):
    """It adds to the weight that both share, so the other module changes."""
    model = peft_model(peft.LoraConfig(r=2, target_modules=targets))
    with torch.no_grad():
        expected = model(IDS).logits
    refused(model, rf"train it without (model\.)?{targets[0]} in target_modules")
    merged = model.merge_and_unload()
    with torch.no_grad():
        assert not torch.allclose(merged(IDS).logits, expected, atol=1)


def test_an_unloaded_peft_model_and_a_folder_with_an_unmerged_adapter(tmp_path):
    model = peft_model(peft.LoraConfig(r=2, target_modules=["q_proj"]))
    inner = model.unload()
    refused(model, "unmerged adapter in a PeftModel: call merge_and_unload")
    assert Decoder.from_transformers(inner)
    adapt(base(), LoRAConfig(rank=2, target_modules=["q_proj"])).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"has an unmerged adapter in {Q_PROJ}"):
        Decoder.from_folder(tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        lambda: adapt(base(), PromptTuningConfig(2)),
        lambda: adapt(base(), PrefixTuningConfig(2)),
        lambda: peft_model(peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")),
        lambda: peft_model(peft.PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")),
    ],
)
def test_a_prompt_or_a_prefix_cannot_be_merged(model):
    refused(model(), "has a trained prompt or prefix, which can't be merged: use the model's own")
