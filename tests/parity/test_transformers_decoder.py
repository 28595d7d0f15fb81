"""The decoder's logits are those of transformers, on random models of each family and on SmolLM2.

The tolerance is the project's, 1e-4 in fp32, relative to the largest logit where it exceeds 1.
Both sides run the same operations in almost the same order, so that the typical error is 1e-6.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.lm import smollm2 as smollm2_package
from course_pkg.lm.decoder import Decoder, causal_attend
from course_pkg.lm.decoder_config import DecoderConfig

from .decoder_models import SIZES, left_mask, pair, tokens
from .small_models import EQUAL

SHORT = [1.0, 1.1, 1.2, 1.3]  # for head_dim 8, 32 / 4 heads here
LONG = [1.0, 1.5, 2.0, 4.0]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": LONG}
TRAINED = {"original_max_position_embeddings": 32}
ROPE = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3 | TRAINED,
    "yarn": YARN,
    "yarn-untruncated": YARN | {"truncate": False, "beta_fast": 3.0, "beta_slow": 0.5},
    "yarn-step": YARN | {"truncate": False, "beta_fast": 2.0, "beta_slow": 2.0},
    "yarn-mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn-attention": YARN | {"attention_factor": 0.8},
    "longrope": LONGROPE | TRAINED | {"short_factor": SHORT},
    "longrope-shrunk": LONGROPE | TRAINED | {"factor": 0.5},
    "longrope-factor": LONGROPE | TRAINED | {"factor": 3.0, "attention_factor": 1.2},
}


def assert_close(ours, theirs):
    """Every logit within 1e-4, relative to the largest one if that exceeds 1."""
    assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, theirs.abs().max())


@torch.no_grad()
def assert_same_logits(ours, theirs, ids):
    assert_close(ours(ids), theirs(ids).logits)


@pytest.mark.parametrize(
    ("rope", "family"), list(zip(ROPE, 4 * ["llama", "mistral", "qwen2"], strict=True))
)
def test_logits_with_each_scaling_of_rope(family, rope):
    # 32 tokens are the original length of longrope, 90 are more than all lengths that matter (the
    # dynamic type: 64). A new model for each, because transformers' dynamic scaling has a state.
    for length in (24, 32, 90):
        scaling = ROPE[rope] | {"rope_theta": 500.0}
        ours, theirs = pair(family, rope_parameters=scaling)
        assert_same_logits(ours, theirs, tokens(2, length))


@given(
    heads=st.sampled_from([(1, 1), (4, 1), (4, 2), (4, 4), (6, 3)]),
    head_dim=st.sampled_from([2, 6, 16]),
    tied=st.booleans(),
    biases=st.tuples(st.booleans(), st.booleans()),
    eps=st.sampled_from([1e-6, 1e-2]),
    length=st.integers(1, 20),
)
@settings(max_examples=20)
def test_logits_of_any_llama(heads, head_dim, tied, biases, eps, length):
    ours, theirs = pair(
        "llama",
        hidden_size=24,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=head_dim,
        attention_bias=biases[0],
        mlp_bias=biases[1],
        tie_word_embeddings=tied,
        rms_norm_eps=eps,
    )
    assert_same_logits(ours, theirs, tokens(2, length))


TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
SWITCHED = {"use_sliding_window": True, "sliding_window": 4}


@pytest.mark.parametrize(
    ("family", "given", "windows"),
    [
        *(("mistral", {"sliding_window": window}, (window,) * 3) for window in (1, 5, 64, None)),
        ("qwen2", {}, (None, None, None)),
        ("qwen2", {"sliding_window": 4, "max_window_layers": 0}, (None, None, None)),
        ("qwen2", {**SWITCHED, "max_window_layers": 1}, (None, 4, 4)),
        ("qwen2", {**SWITCHED, "layer_types": TYPES}, (4, None, 4)),
    ],
)
def test_logits_with_windows_in_some_layers(family, given, windows):
    ours, theirs = pair(family, **given, tie_word_embeddings=True)
    assert ours.config.windows == windows
    assert_same_logits(ours, theirs, tokens(2, 17))


@pytest.mark.parametrize("window", [None, 4])
def test_left_padding_by_positions_and_mask(window):
    ours, theirs = pair("mistral", sliding_window=window)
    ids = tokens(3, 12)
    mask = left_mask(12, 7, 1, length=12)
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        padded = ours(ids, positions, causal_attend(ours.config, mask))
        expected = theirs(ids, attention_mask=mask.long(), position_ids=positions).logits
        assert_close(padded[mask], expected[mask])
        for row, real in zip(range(3), (12, 7, 1), strict=True):
            assert_close(padded[row, -real:], ours(ids[row : row + 1, -real:])[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_at_most_twice_the_error_of_transformers(dtype):
    ours, theirs = pair("llama")
    ours = Decoder.from_transformers(theirs.to(dtype))
    ids = tokens(2, 20)
    with torch.no_grad():
        results = ours(ids).float(), theirs(ids).logits.float()
        exact = ours.to(torch.float64)(ids)  # the same rounded weights
    errors = [(result - exact).norm() / exact.norm() for result in results]
    assert 0 < errors[0] <= 2 * errors[1]


def test_gradients_are_those_of_transformers():
    ours, theirs = pair("qwen2", tie_word_embeddings=True)
    copies = {name: value.clone() for name, value in ours.state_dict().items()}
    ours.load_state_dict(copies, assign=True)
    ids = tokens(2, 9)
    for output in (ours(ids), theirs(ids).logits):
        output.logsumexp(-1).sum().backward()
    reference = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        expected = reference[f"model.{name}"].grad
        assert (parameter.grad - expected).norm() <= 4 * EQUAL * expected.norm(), name


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_a_folder_that_save_pretrained_wrote_in_several_files(tmp_path, family):
    _, theirs = pair(family, rope_parameters=dict(ROPE["yarn"]), tie_word_embeddings=True)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_logits(Decoder.from_folder(tmp_path), theirs, tokens(2, 20))


def test_old_config_files_mean_what_they_mean_in_transformers():
    # As transformers 4 wrote them: rope_theta and rope_scaling, "type" for "rope_type".
    old = {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 3.0}}
    config = DecoderConfig.from_dict({"model_type": "llama"} | SIZES | old)
    theirs = LlamaForCausalLM(LlamaConfig(**SIZES, **old)).eval()  # changes its rope_scaling
    assert_same_logits(Decoder._of(config, theirs.state_dict()), theirs, tokens(1, 9))


@pytest.mark.model
@pytest.mark.slow
def test_smollm2s_logits(smollm2):
    ours = Decoder.from_folder(smollm2_package.prepare())
    text = "A cache stores keys and values. " * 12
    ids = smollm2.tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        expected = smollm2.model(ids).logits
        assert (ours(ids) - expected).abs().max() <= 1e-4
        assert (ours(ids, last_only=True) - expected[:, -1:]).abs().max() <= 1e-4
    assert sum(p.numel() for p in ours.parameters()) == smollm2.model.num_parameters()
