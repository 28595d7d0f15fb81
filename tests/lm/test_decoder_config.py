"""A config.json as a decoder's config: defaults, and a clear error for what the decoder lacks."""

import pytest

from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.lm.model_errors import ModelError

LLAMA = {"model_type": "llama", "vocab_size": 9, "hidden_size": 24, "intermediate_size": 16}
LLAMA |= {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
MISTRAL = LLAMA | {"model_type": "mistral"}
QWEN2 = LLAMA | {"model_type": "qwen2", "use_sliding_window": True}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def test_what_a_config_leaves_out_has_transformers_default():
    config = DecoderConfig.from_dict(LLAMA)
    assert (config.kv_heads, config.head_dim, config.rms_norm_eps) == (4, 6, 1e-6)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    assert config.rope == rope
    assert not (config.tied or config.qkv_bias or config.output_bias or config.mlp_bias)
    assert DecoderConfig.from_dict(MISTRAL).windows == (4096, 4096)
    assert DecoderConfig.from_dict(LLAMA | {"sliding_window": 5}).windows == (None, None)
    assert DecoderConfig.from_dict(QWEN2).windows == (None, None)  # from layer 28 on
    one = {"max_window_layers": 1, "sliding_window": 5}
    assert DecoderConfig.from_dict(QWEN2 | one).windows == (None, 5)


def test_biases_depend_on_the_family_and_the_original_length_beside_rope_has_priority():
    biased = {"attention_bias": True, "mlp_bias": True}

    def biases(family):
        config = DecoderConfig.from_dict(LLAMA | biased | {"model_type": family})
        return config.qkv_bias, config.output_bias, config.mlp_bias

    assert biases("llama") == (True, True, True)
    assert biases("mistral") == (False, False, False)
    assert biases("qwen2") == (True, False, False)
    # Phi-3 writes it there, and transformers prefers it for every family.
    given = LLAMA | {"rope_scaling": YARN, "original_max_position_embeddings": 16}
    assert DecoderConfig.from_dict(given).rope["original_max_position_embeddings"] == 16


def test_a_config_that_the_decoder_cannot_run(subtests):
    for given, message in (
        ({"model_type": "gpt2"}, "model_type is 'gpt2', expected one of llama, mistral, qwen2"),
        ({"vocab_size": None}, "vocab_size is None, expected a positive integer"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected silu"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, expected a divisor of 4"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2', expected a positive integer"),
        ({"head_dim": 5}, "head_dim is 5, expected an even number"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "expected one rope_type for all layers"),
        ({"rope_parameters": {"full_attention": {"type": "default"}}}, "expected one rope_type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1"),
        ({"rope_scaling": {"type": "linear"}}, "RoPE's factor is None, expected a number"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            r"RoPE's short_factor is \[1.0\], expected 3 numbers",
        ),
        (MISTRAL | {"sliding_window": 0}, "sliding_window is 0, expected a positive integer"),
        (QWEN2 | {"layer_types": ["full_attention"]}, "layer_types is .*, expected 2 of"),
        (
            QWEN2 | {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": False},
            "layers slide, but sliding_window is off",
        ),
    ):
        with subtests.test(given=given, message=message):
            with pytest.raises(ModelError, match=message) as error:
                DecoderConfig.from_dict(LLAMA | given)
            assert "\n" not in str(error.value) and "use transformers" in str(error.value)
