"""Reading config.json and tensors: defaults, and a clear error for what the decoder lacks."""

import json

import pytest
import torch
from safetensors.torch import save_file

from course_pkg.lm.checkpoint import DecoderConfig, fitted, read_folder
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.errors import CorruptModelError, ModelError
from course_pkg.lm.tiny import tiny_model

LLAMA = {
    "model_type": "llama",
    "vocab_size": 9,
    "hidden_size": 24,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
MISTRAL = LLAMA | {"model_type": "mistral"}
QWEN2 = LLAMA | {"model_type": "qwen2", "use_sliding_window": True}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def test_what_a_config_leaves_out_has_transformers_default():
    config = DecoderConfig.from_dict(LLAMA)
    assert (config.kv_heads, config.head_dim, config.rms_norm_eps) == (4, 6, 1e-6)
    assert config.rope == {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
    }
    assert not (config.tied or config.qkv_bias or config.output_bias or config.mlp_bias)
    assert DecoderConfig.from_dict(MISTRAL).windows == (4096, 4096)
    assert DecoderConfig.from_dict(LLAMA | {"sliding_window": 5}).windows == (None, None)
    assert DecoderConfig.from_dict(QWEN2).windows == (None, None)  # from layer 28 on
    one = {"max_window_layers": 1, "sliding_window": 5}
    assert DecoderConfig.from_dict(QWEN2 | one).windows == (None, 5)


def test_biases_depend_on_the_family():
    biased = {"attention_bias": True, "mlp_bias": True}

    def biases(family):
        config = DecoderConfig.from_dict(LLAMA | biased | {"model_type": family})
        return config.qkv_bias, config.output_bias, config.mlp_bias

    assert biases("llama") == (True, True, True)
    assert biases("mistral") == (False, False, False)
    assert biases("qwen2") == (True, False, False)


def test_rope_settings_of_transformers_4_and_5_mean_the_same():
    old = LLAMA | {"rope_theta": 500.0, "rope_scaling": YARN}
    new = {"rope_type": "yarn", "rope_theta": 500.0} | {k: YARN[k] for k in YARN if k != "type"}
    assert DecoderConfig.from_dict(old) == DecoderConfig.from_dict(LLAMA | {"rope_parameters": new})


def test_the_original_length_beside_the_rope_settings_has_priority():
    # Phi-3 writes it there, and transformers prefers it for every family.
    given = LLAMA | {"rope_scaling": YARN, "original_max_position_embeddings": 16}
    assert DecoderConfig.from_dict(given).rope["original_max_position_embeddings"] == 16


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2', expected one of llama, mistral, qwen2"),
        ({"model_type": None}, "model_type is None"),
        ({"vocab_size": None}, "vocab_size is None, expected a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected a positive integer"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected silu"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, expected a divisor of 4"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2', expected a positive integer"),
        ({"head_dim": -2}, "head_dim is -2, expected a positive integer"),
        ({"head_dim": 5}, "head_dim is 5, expected an even number"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "expected one rope_type for all layers"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "expected one rope_type for all layers",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1"),
        ({"rope_scaling": {"type": "linear"}}, "RoPE's factor is None, expected a number"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
            "RoPE's high_freq_factor is None, expected a number",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.0, 1.0]}},
            "RoPE's long_factor is None, expected 3 numbers",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            r"RoPE's short_factor is \[1.0\], expected 3 numbers",
        ),
    ],
)
def test_a_llama_config_that_the_decoder_cannot_run(given, message):
    with pytest.raises(ModelError, match=message) as error:
        DecoderConfig.from_dict(LLAMA | given)
    assert "\n" not in str(error.value) and "use transformers" in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (MISTRAL | {"sliding_window": 0}, "sliding_window is 0, expected a positive integer"),
        (QWEN2 | {"layer_types": ["full_attention"]}, "layer_types is .*, expected 2 of"),
        (QWEN2 | {"layer_types": ["chunked", "chunked"]}, "layer_types is .*, expected 2 of"),
        (
            QWEN2 | {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": False},
            "layers slide, but sliding_window is off",
        ),
    ],
)
def test_a_window_that_the_decoder_cannot_run(given, message):
    with pytest.raises(ModelError, match=message):
        DecoderConfig.from_dict(given)


@pytest.fixture
def folder(tmp_path):
    """The tiny model, as `save_pretrained` writes it in several files."""
    tiny_model().save_pretrained(tmp_path, max_shard_size="100KB")
    return tmp_path


def test_every_tensor_of_every_file_is_read(folder):
    _, tensors = read_folder(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    expected = tiny_model().state_dict()
    expected.pop("lm_head.weight")  # tied
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())


def test_a_safetensors_file_that_the_index_does_not_name_is_left_out(folder):
    save_file({"adapter": torch.ones(1)}, folder / "adapter_model.safetensors")
    assert "adapter" not in read_folder(folder)[1]


@pytest.mark.parametrize("missing", ["config.json", "*.safetensors"])
def test_a_folder_without_config_or_weights(folder, missing):
    for file in folder.glob(missing):
        file.unlink()
    with pytest.raises(ModelError, match=r"is no checkpoint: expected a folder with config.json"):
        Decoder.from_folder(folder)


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(ModelError, match="no checkpoint"):
        Decoder.from_folder(tmp_path / "none")


def test_a_missing_shard_is_named(folder):
    shard = min(folder.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(CorruptModelError, match=f"lacks {shard.name}, which model.safetensors"):
        Decoder.from_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_broken_json_file(folder, name):
    (folder / name).write_text("{")
    with pytest.raises(CorruptModelError, match=r"cannot be read .*: copy it again"):
        Decoder.from_folder(folder)


def test_an_index_without_a_weight_map(folder):
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CorruptModelError, match=r"cannot be read .*weight_map"):
        Decoder.from_folder(folder)


def test_a_truncated_weights_file(folder):
    shard = min(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CorruptModelError, match=r"cannot be read .*: copy it again"):
        Decoder.from_folder(folder)


def test_a_config_that_is_no_dictionary(folder):
    (folder / "config.json").write_text(json.dumps([1]))
    with pytest.raises(CorruptModelError, match=r"config.json is no dictionary"):
        Decoder.from_folder(folder)


SHAPES = {"embed_tokens.weight": (5, 2), "norm.weight": (2,)}
TENSORS = {"model.embed_tokens.weight": torch.ones(5, 2), "model.norm.weight": torch.ones(2)}


def test_fitted_leaves_out_stored_rope_frequencies_and_a_second_copy_of_tied_embeddings():
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(1)}
    again = {"lm_head.weight": torch.ones(5, 2)}
    assert fitted(TENSORS | extra | again, SHAPES, tied=True).keys() == SHAPES.keys()


def test_tied_tensors_that_differ():
    tensors = TENSORS | {"lm_head.weight": torch.zeros(5, 2)}
    with pytest.raises(CorruptModelError, match="but the config ties them: set tie_word_embedd"):
        fitted(tensors, SHAPES, tied=True)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"model.norm.weight": torch.ones(2)}, "lacks embed_tokens.weight: copy it again"),
        ({}, "lacks embed_tokens.weight and 1 more tensors: copy it again"),
        (TENSORS | {"a": torch.ones(1)}, "the decoder has no a: give a checkpoint that is not"),
        (
            TENSORS | {"lm_head.weight": torch.ones(5, 2), "b": torch.ones(1)},
            "the decoder has no b and 1 more tensors",
        ),
        (
            TENSORS | {"model.norm.weight": torch.ones(3)},
            r"norm.weight has shape \(3,\), expected \(2,\): config.json belongs to another",
        ),
    ],
)
def test_tensors_that_do_not_fit(tensors, message):
    with pytest.raises(CorruptModelError, match=message):
        fitted(tensors, SHAPES, tied=False)
