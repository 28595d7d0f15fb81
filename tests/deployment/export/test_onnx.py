"""An exported model computes what transformers computes, in every shape, and without torch."""

import copy
import subprocess
import sys

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from course_pkg.acceleration.quantization.gguf_blocks import write_gguf
from course_pkg.acceleration.quantization.grouped import Grid
from course_pkg.acceleration.quantization.layerwise import RoundToNearest, quantize_layers
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.adapters.injection import inject, merge_adapters, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.deployment.export import onnx_model
from course_pkg.deployment.export.onnx_model import cache_names, export_onnx, quantize_onnx
from course_pkg.deployment.export.onnx_session import OnnxDecoder
from course_pkg.lm.load import load
from course_pkg.lm.model_errors import ModelError

# fp32 sums in another order; logits of the tiny models are below 2 in magnitude.
CLOSE = {"rtol": 0, "atol": 2e-5}
SIZES = {"vocab_size": 259, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 258}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
MODELS = {
    "llama untied, with biases": (
        LlamaForCausalLM,
        LlamaConfig(**SIZES, tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
    ),
    "llama3 rope": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "yarn": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=YARN)),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=5)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True)),
}


def random_model(kind, config, seed=0):
    """A model whose biases and norms are random too, so that leaving one out is noticed."""
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def tiny():
    return load("tiny")


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    return export_onnx(*tiny, tmp_path_factory.mktemp("tiny")).parent


@pytest.fixture(scope="module")
def decoder(exported):
    return OnnxDecoder(exported, threads=1)


def padded(batch, tokens, seed=0):
    """Random ids and a mask; all rows but the first have padding on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (batch, tokens), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        mask[row, : tokens * row // batch] = 0
    return ids, mask


@torch.inference_mode()
def expected_logits(model, ids, mask):
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return model(ids, attention_mask=mask, position_ids=positions).logits


def assert_equal_logits(model, decoder, ids, mask, calls):
    """transformers reads all tokens at once, the decoder in `calls` of so many tokens each."""
    expected = expected_logits(model, ids, mask)
    cache = None
    parts = []
    for part, real in zip(ids.split(calls, 1), mask.split(calls, 1), strict=True):
        logits, cache = decoder.forward(part.numpy(), real.numpy(), cache)
        assert np.isfinite(logits).all()
        parts.append(torch.from_numpy(logits.copy()))
    real = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[real], expected[real], **CLOSE)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (3, 2), (1, 17), (3, 65)])
def test_logits_equal_those_of_transformers_for_prompts_and_steps(tiny, decoder, batch, tokens):
    ids, mask = padded(batch, tokens + 5)
    assert_equal_logits(tiny.model, decoder, ids, mask, [tokens, 1, 1, 3])


@pytest.mark.parametrize("name", MODELS)
def test_every_supported_architecture_computes_the_same(tiny, tmp_path, name):
    model = random_model(*MODELS[name])
    decoder = OnnxDecoder(export_onnx(model, tiny.tokenizer, tmp_path).parent, threads=1)
    ids, mask = padded(3, 24)
    assert_equal_logits(model, decoder, ids, mask, [17, 1, 6])


def test_a_sequence_of_padding_alone_is_finite_and_does_not_spoil_the_cache(decoder):
    ids = np.full((2, 3), 9)
    logits, cache = decoder.forward(ids, np.array([[0, 0, 0], [1, 1, 1]]))
    after, _ = decoder.forward(np.array([[5], [5]]), cache=cache)
    alone, _ = decoder.forward(np.array([[5]]))
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(after[0], alone[0], **CLOSE)


def test_the_reference_implementation_of_the_standard_agrees(tiny, exported):
    evaluator = onnx.reference.ReferenceEvaluator(onnx.load(exported / "model.onnx"))
    ids, mask = padded(2, 6)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    inputs = {name: tensor.numpy() for name, tensor in inputs.items()}
    inputs["num_logits_to_keep"] = np.array(0)
    for layer in range(2):
        for name in cache_names("past_key_values", layer):
            inputs[name] = np.zeros((2, 2, 0, 16), np.float32)
    outputs = evaluator.run(None, inputs)
    assert all(np.isfinite(output).all() for output in outputs)
    real = mask.bool()
    expected = expected_logits(tiny.model, ids, mask)[real]
    torch.testing.assert_close(torch.from_numpy(outputs[0])[real], expected, **CLOSE)


def test_a_cache_can_be_continued_twice_and_only_the_last_logits_computed(decoder):
    _, cache = decoder.forward(np.array([[1, 2, 3]]))
    first, _ = decoder.forward(np.array([[4]]), cache=cache)
    decoder.forward(np.array([[5]]), cache=cache)
    again, _ = decoder.forward(np.array([[4]]), cache=cache)
    np.testing.assert_array_equal(first, again)
    ids, mask = (x.numpy() for x in padded(2, 9))
    every, _ = decoder.forward(ids, mask)
    last, _ = decoder.forward(ids, mask, keep=2)
    assert last.shape == (2, 2, 259)
    np.testing.assert_allclose(last, every[:, -2:], **CLOSE)


def test_greedy_tokens_equal_those_of_transformers_up_to_the_end_token(tiny, tmp_path):
    model = copy.deepcopy(tiny.model)
    with torch.no_grad():  # sharper layers: otherwise the model repeats its last token
        for layer in model.model.layers.parameters():
            layer.mul_(4)
    prompts = [[10, 20, 30], [7], [1, 2, 3, 4, 5, 6, 7, 8]]
    greedy = {"max_new_tokens": 12, "do_sample": False}
    free = model.generate(torch.tensor([[7]]), **greedy, eos_token_id=None)
    model.generation_config.eos_token_id = [258, int(free[0, 6])]  # ends the second prompt early
    decoder = OnnxDecoder(export_onnx(model, tiny.tokenizer, tmp_path).parent, threads=1)
    expected = []
    for prompt in prompts:
        out = model.generate(torch.tensor([prompt]), **greedy)
        expected.append([t for t in out[0, len(prompt) :].tolist() if t not in decoder.eos])
    assert decoder.generate(prompts, max_new_tokens=12) == expected
    assert len(expected[1]) < 12 and len(set(expected[2])) > 5


def test_a_merged_adapter_is_in_the_file_and_an_unmerged_one_is_refused(tiny, tmp_path):
    model = copy.deepcopy(tiny.model)
    inject(model, LoRAConfig(rank=2, alpha=4, target_modules=("q_proj", "down_proj")))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.normal_(std=0.2)
    with pytest.raises(ModelError, match="unmerged adapter"):
        export_onnx(model, tiny.tokenizer, tmp_path)
    ids, mask = padded(1, 9)
    adapted = expected_logits(model, ids, mask)
    merge_adapters(model)
    remove_adapters(model)
    decoder = OnnxDecoder(export_onnx(model, tiny.tokenizer, tmp_path).parent, threads=1)
    assert_equal_logits(model, decoder, ids, mask, [9])
    assert (adapted - expected_logits(tiny.model, ids, mask)).abs().max() > 0.01


def test_the_file_is_valid_and_stores_tied_embeddings_once(tiny, exported):
    onnx.checker.check_model(exported / "model.onnx", full_check=True)
    graph = onnx.load(exported / "model.onnx", load_external_data=False).graph
    weights = [w for w in graph.initializer if w.data_location == onnx.TensorProto.EXTERNAL]
    stored = sum(int(np.prod(w.dims)) for w in weights)
    assert stored == sum(p.numel() for p in tiny.model.parameters())
    size = (exported / "model.onnx_data").stat().st_size
    assert 4 * stored <= size < 4 * stored + onnx_model.PAGE * len(weights)


def test_sixteen_bit_weights_are_stored_exactly(tiny, tmp_path):
    model = copy.deepcopy(tiny.model).to(torch.bfloat16)
    decoder = OnnxDecoder(export_onnx(model, tiny.tokenizer, tmp_path).parent, threads=1)
    ids, mask = padded(1, 9)
    assert_equal_logits(model.float(), decoder, ids, mask, [9])


@pytest.mark.parametrize(("bits", "symmetric"), [(8, False), (4, True)])
def test_quantized_layers_keep_their_codes(tiny, tmp_path, bits, symmetric):
    # 96 columns have three groups of 32: the last byte of packed zero points is half empty.
    model = random_model(LlamaForCausalLM, LlamaConfig(**SIZES))
    quantize_layers(model, RoundToNearest(Grid(bits, 32, symmetric)))
    decoder = OnnxDecoder(export_onnx(model, tiny.tokenizer, tmp_path).parent, threads=1)
    ids, mask = padded(2, 9)
    expected = expected_logits(model, ids, mask)
    logits, _ = decoder.forward(ids.numpy(), mask.numpy())
    error = (torch.from_numpy(logits.copy()) - expected)[mask.bool()]
    # The operator rounds x to 8 bits in blocks: half a step is 1/254 of a block's largest number.
    assert error.norm() / expected[mask.bool()].norm() < 0.02


def test_dynamic_quantization_keeps_attention_and_does_not_overflow(tiny, exported, capfd, caplog):
    path = quantize_onnx(exported)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("Attention") == 2 and "QAttention" not in kinds
    weights = [w for w in onnx.load(path).graph.initializer if w.name.endswith("_quantized")]
    # Seven in each layer, and the output matrix.
    largest = max(np.abs(onnx.numpy_helper.to_array(w).astype(int)).max() for w in weights)
    assert len(weights) == 15 and largest <= 64  # 7 bits: 2 · 255 · 64 is less than 2^15
    ids, mask = padded(2, 17)
    expected = expected_logits(tiny.model, ids, mask)[mask.bool()]
    logits, _ = OnnxDecoder(exported, path.name, threads=1).forward(ids.numpy(), mask.numpy())
    error = torch.from_numpy(logits.copy())[mask.bool()] - expected
    assert error.norm() / expected.norm() < 0.1
    assert capfd.readouterr() == ("", "") and caplog.records == []


def test_other_models_and_formats_that_no_operator_reads_are_refused(tiny, tmp_path):
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9))
    with pytest.raises(ModelError, match="gpt2"):
        export_onnx(other, tiny.tokenizer, tmp_path)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope))
    with pytest.raises(ModelError, match="dynamic depends on the length"):
        export_onnx(model, tiny.tokenizer, tmp_path)
    model = copy.deepcopy(tiny.model)
    layer = model.model.layers[0].mlp.up_proj
    model.model.layers[0].mlp.up_proj = QuantizedLinear(write_gguf(layer.weight, "Q4_0"))
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj has .*Q4_0.*Grid\(4, 32\)"):
        export_onnx(model, tiny.tokenizer, tmp_path)
    assert not list(tmp_path.glob("model*"))


def test_wrong_calls_and_folders_are_refused(decoder, exported, tmp_path):
    _, cache = decoder.forward(np.array([[1], [2]]))
    for ids in ([[259]], [[-1]], [1, 2], np.zeros((1, 0), int)):
        with pytest.raises(ValueError, match="expected"):
            decoder.forward(np.array(ids))
    with pytest.raises(ValueError, match="cache has 2 sequences"):
        decoder.forward(np.array([[1]]), cache=cache)
    with pytest.raises(ValueError, match="empty"):
        decoder.generate([[1], []])
    with pytest.raises(TypeError, match="prompts must be a list"):
        decoder.generate("text")
    with pytest.raises(ModelError, match=r"no model\.onnx: write"):
        OnnxDecoder(tmp_path)
    with pytest.raises(ModelError, match=r"model\.onnx does not exist"):
        quantize_onnx(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    (tmp_path / "tokenizer.json").write_bytes((exported / "tokenizer.json").read_bytes())
    with pytest.raises(ModelError, match="cannot be read"):
        OnnxDecoder(tmp_path)


def test_a_session_needs_no_torch_and_prints_nothing(exported):
    code = (
        "import sys; from course_pkg.deployment.export.onnx_session import OnnxDecoder\n"
        f"print(OnnxDecoder({str(exported)!r}, threads=1).generate([[1, 2]], 2))\n"
        "assert {'torch', 'transformers', 'onnx'}.isdisjoint(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith("[[")
