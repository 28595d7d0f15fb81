"""GPTQ's files: packing bit by bit, both conventions of zero points, whole checkpoints."""

import copy
import json
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.acceleration.quantization.gptq import GPTQ
from course_pkg.acceleration.quantization.gptq_files import (
    FORMATS,
    PARTS,
    from_gptq,
    load_gptq,
    read_gptq,
    save_gptq,
    to_gptq,
)
from course_pkg.acceleration.quantization.grouped import Grid, pack, round_to_nearest, store
from course_pkg.acceleration.quantization.layerwise import RoundToNearest, quantize_layers
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.lm.model_errors import CorruptModelError, ModelError
from tests.acceleration.quantization import examples
from tests.refusals import require_refusals, wrong_refusals

BITS = [2, 3, 4, 8]
SIZES = examples.SIZES | {"num_attention_heads": 2}


def weight_of(bits, width=32, rows=64, columns=96, shuffled=False, seed=0):
    """A quantized weight with every code, and zero points from 1 on."""
    generator = torch.Generator().manual_seed(seed)
    grid = Grid(bits, width)
    groups = columns // width
    codes = torch.randint(2**bits, (rows, columns), generator=generator)
    zero = torch.randint(1, 2**bits, (rows, groups), generator=generator)
    scale = torch.rand(rows, groups, generator=generator) + 0.1
    order = None
    if shuffled:
        order = torch.arange(columns)[torch.randperm(columns, generator=generator)] // width
    return store(codes, scale, zero, grid, torch.float32, order)


def independent(tensors, bits, checkpoint_format):
    """The weight, (out, in), by a reader that looks at single bits, from the last to the first.

    It shares no code with ours: each column of words becomes one large Python integer, from which
    numbers are taken by division. AutoGPTQ 0.7.1, which needs another transformers and so is not
    installed here, was run once from its source: its `pack` made the same words as `to_gptq`, for
    all four numbers of bits.
    """

    def numbers(words):
        total = 0
        for word in reversed([int(word) % 2**32 for word in words]):
            total = total * 2**32 + word
        taken = []
        while len(taken) < len(words) * 32 // bits:
            total, number = divmod(total, 2**bits)
            taken.append(number)
        return taken

    qweight, qzeros, scales, g_idx = (tensors[name].numpy() for name in PARTS)
    codes = np.array([numbers(qweight[:, column]) for column in range(qweight.shape[1])])
    zeros = np.array([numbers(qzeros[group]) for group in range(len(qzeros))])
    if checkpoint_format == "gptq":
        zeros = (zeros + 1) % 2**bits
    weight = np.zeros(codes.shape, dtype=np.float32)
    for (row, column), code in np.ndenumerate(codes):
        group = g_idx[column]
        weight[row, column] = np.float32(scales[group, row]) * (code - zeros[group, row])
    return torch.from_numpy(weight)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("checkpoint_format", "shuffled"), list(zip(FORMATS, (False, True), strict=True))
)
def test_an_independent_reader_and_ours_find_the_same_weight(bits, checkpoint_format, shuffled):
    weight = weight_of(bits, shuffled=shuffled)
    tensors = to_gptq(weight, checkpoint_format)
    assert [(name, tensors[name].dtype) for name in PARTS] == [
        ("qweight", torch.int32),
        ("qzeros", torch.int32),
        ("scales", torch.float16),
        ("g_idx", torch.int32),
    ]
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert shapes["qweight"] == (96 * bits // 32, 64)
    assert shapes["qzeros"] == (3, 64 * bits // 32)
    assert shapes["scales"] == (3, 64)
    assert torch.equal(independent(tensors, bits, checkpoint_format), weight.dequantize())
    read = from_gptq(tensors, weight.grid, checkpoint_format)
    assert read.tensors().keys() == weight.tensors().keys()
    assert all(torch.equal(value, weight.tensors()[name]) for name, value in read.tensors().items())


def test_words_of_4_bits_by_hand():
    """Input 0 is in the lowest bits."""
    four = torch.zeros(32, 32)
    four[:, :8] = torch.arange(1, 9)
    words = to_gptq(store(four, torch.ones(32, 1), torch.ones(32, 1), Grid(4, 32), torch.float32))
    assert words["qweight"][0, 0].item() == 0x87654321 - 2**32
    assert words["qzeros"].tolist() == [[0] * 4]  # 1 − 1


@pytest.mark.parametrize("bits", BITS)
def test_the_middle_of_a_symmetric_grid_shows_the_convention_whatever_the_label(bits):
    weight = round_to_nearest(torch.randn(32, 64), Grid(bits, 32, symmetric=True))
    for written in FORMATS:
        for label in FORMATS:
            read = from_gptq(to_gptq(weight, written), weight.grid, label)
            assert torch.equal(read.dequantize(), weight.dequantize()), (written, label)


def test_a_zero_point_of_0_is_only_written_in_the_new_format():
    weight = round_to_nearest(torch.rand(32, 32) + 1, Grid(4, 32))
    assert not weight.zero.any()
    with pytest.raises(ValueError, match='use checkpoint_format="gptq_v2"'):
        to_gptq(weight, "gptq")
    assert torch.equal(
        from_gptq(to_gptq(weight, "gptq_v2"), weight.grid, "gptq_v2").zero, weight.zero
    )
    # AutoGPTQ stores it as −1 modulo 16, which is read as 0
    stored = to_gptq(weight, "gptq_v2") | {"qzeros": torch.full((1, 4), -1, dtype=torch.int32)}
    assert torch.equal(from_gptq(stored, weight.grid, "gptq").zero, weight.zero)


def test_what_does_not_fit_the_format_is_refused():
    def write(bits, rows, columns):
        to_gptq(round_to_nearest(torch.randn(rows, columns), Grid(bits, None)))

    require_refusals(
        (write, 5, 32, 32, "2, 3, 4 or 8 bits, not 5"),
        (write, 4, 48, 32, "multiples of 32 outputs and inputs, got 48 and 32"),
        (write, 4, 32, 40, "multiples of 32 outputs and inputs, got 32 and 40"),
        (pack, torch.tensor([[3, 16]]), 4, "codes of 4 bits are in 0 … 15, got 3 … 16"),
        (to_gptq, weight_of(4), "v1", "checkpoint_format must be one of gptq, gptq_v2"),
        (from_gptq, {}, Grid(4, 32), "v1", "checkpoint_format must be one of gptq, gptq_v2"),
    )


def test_tensors_that_do_not_fit_are_one_clear_error():
    right = to_gptq(weight_of(4))

    def read(change):
        tensors = (right | change).items()
        from_gptq({name: x for name, x in tensors if x is not None}, Grid(4, 32))

    require_refusals(
        ({"qweight": None}, "qweight is missing"),
        ({"g_idx": None, "scales": None}, "scales, g_idx is missing"),
        ({"qweight": torch.zeros(12, 32, dtype=torch.int32)}, r"qweight is \(12, 32\)"),
        ({"qweight": torch.zeros(12, 64)}, "torch.float32"),
        ({"qzeros": torch.zeros(3, 7, dtype=torch.int32)}, r"need \(3, 8\)"),
        ({"scales": torch.ones(2, 64)}, r"scales is \(2, 64\)"),
        ({"scales": torch.ones(3, 60)}, "multiples of 32"),
        ({"g_idx": torch.full((96,), 3, dtype=torch.int32)}, "g_idx must be in 0 … 2, got 3"),
        ({"g_idx": torch.full((96,), -1, dtype=torch.int32)}, "g_idx must be in"),
        ({"g_idx": torch.zeros(64, dtype=torch.int32)}, "qweight is"),
        of=read,
    )


def quantized(method=None, **settings):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **settings)).eval()
    ids = torch.arange(60).reshape(2, 30)
    quantize_layers(model, method or RoundToNearest(Grid(4, 32)), [ids])
    return model


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(22).reshape(2, 11)).logits


@pytest.mark.parametrize(
    ("method", "settings", "checkpoint_format"),
    [
        (RoundToNearest(Grid(4, 32)), {}, "gptq"),
        (RoundToNearest(Grid(3, None, symmetric=True)), {"tie_word_embeddings": True}, "gptq_v2"),
        (GPTQ(Grid(4, 32), act_order=True), {"attention_bias": True}, "gptq_v2"),
        (GPTQ(Grid(8, 16, symmetric=True), act_order=True), {}, "gptq"),
    ],
)
def test_a_saved_model_is_loaded_with_the_same_outputs(
    tmp_path, method, settings, checkpoint_format
):
    model = quantized(method, **settings)
    save_gptq(model, tmp_path / "new", checkpoint_format)
    loaded = load_gptq(tmp_path / "new")
    assert torch.equal(logits(loaded), logits(model))
    assert not loaded.training
    stored = json.loads((tmp_path / "new" / "config.json").read_bytes())["quantization_config"]
    assert stored == {
        "quant_method": "gptq",
        "bits": method.grid.bits,
        "group_size": method.grid.group_size or -1,
        "desc_act": getattr(method, "act_order", False),
        "sym": method.grid.symmetric,
        "checkpoint_format": checkpoint_format,
        "pack_dtype": "int32",
        "lm_head": False,
    }
    names = load_file(tmp_path / "new" / "model.safetensors").keys()
    assert "model.layers.1.mlp.up_proj.qweight" in names
    assert "model.layers.1.mlp.up_proj.weight" not in names
    assert ("lm_head.weight" in names) != settings.get("tie_word_embeddings", False)


@pytest.mark.parametrize(("dtype", "tied"), [(torch.float32, True), (torch.bfloat16, False)])
def test_everything_but_the_codes_and_the_angles_of_positions_has_the_dtype(tmp_path, dtype, tied):
    model = quantized(tie_word_embeddings=tied, attention_bias=True)
    save_gptq(model, tmp_path)
    loaded = load_gptq(tmp_path, dtype)
    frequencies = loaded.model.rotary_emb.inv_freq
    assert torch.equal(frequencies, model.model.rotary_emb.inv_freq)  # as transformers loads them
    kinds = {p.dtype for p in loaded.parameters() if p.is_floating_point()}
    assert kinds == {dtype} and frequencies.dtype == torch.float32
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert torch.allclose(logits(loaded).float(), logits(model), atol=0.05)
    assert not any(tensor.is_meta for tensor in (*loaded.parameters(), *loaded.buffers()))


def test_the_tokens_that_end_a_text_are_saved_with_the_model(tmp_path):
    model = quantized()
    model.generation_config.eos_token_id = [5, 7]
    save_gptq(model, tmp_path)
    assert load_gptq(tmp_path).generation_config.eos_token_id == [5, 7]
    (tmp_path / "generation_config.json").unlink()
    assert load_gptq(tmp_path).generation_config.eos_token_id == model.config.eos_token_id
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CorruptModelError, match="cannot be read"):
        load_gptq(tmp_path)


def test_a_checkpoint_is_read_without_a_model(tmp_path):
    model = quantized()
    save_gptq(model, tmp_path)
    checkpoint = read_gptq(tmp_path, torch.bfloat16)
    assert len(checkpoint.weights) == 14
    name = "model.layers.0.self_attn.q_proj"
    assert torch.equal(checkpoint.weights[name].codes, model.get_submodule(name).quantized.codes)
    assert checkpoint.weights[name].dtype == torch.bfloat16
    assert "model.norm.weight" in checkpoint.tensors
    assert "quantization_config" not in checkpoint.config


def test_what_older_programs_wrote_is_understood(tmp_path):
    """AutoGPTQ wrote a bias of zeros for layers without one, and had one format."""
    model = quantized(tie_word_embeddings=True)
    save_gptq(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.bias"] = torch.zeros(64)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    edit(tmp_path, lambda config: config["quantization_config"].pop("checkpoint_format"))
    assert torch.equal(logits(load_gptq(tmp_path)), logits(model))


def test_other_tensors_are_not_ignored(tmp_path):
    save_gptq(quantized(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.bias"] = torch.ones(64)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CorruptModelError, match=r"up_proj\.bias is only in one"):
        load_gptq(tmp_path)


def edit(folder, change):
    config = json.loads((folder / "config.json").read_bytes())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_checkpoint_that_does_not_fit_is_one_clear_error(tmp_path):
    changes = [
        (lambda c: c.pop("quantization_config"), ModelError, "not a GPTQ checkpoint"),
        (lambda c: c["quantization_config"].update(quant_method="awq"), ModelError, "not a GPTQ"),
        (lambda c: c["quantization_config"].pop("bits"), CorruptModelError, "lacks 'bits'"),
        (lambda c: c["quantization_config"].update(bits=3), CorruptModelError, "proj: qweight is"),
        (lambda c: c["quantization_config"].update(group_size=16), CorruptModelError, "qzeros is"),
        (
            lambda c: c["quantization_config"].update(checkpoint_format="marlin"),
            CorruptModelError,
            "checkpoint_format must be one of",
        ),
        (lambda c: c.update(model_type="qwen2"), ModelError, 'type "qwen2"'),
        (lambda c: c.update(num_hidden_layers=3), CorruptModelError, "layers.2.* is only in one"),
        (lambda c: c.update(num_hidden_layers=1), CorruptModelError, "layers.1"),
        (lambda c: c.update(intermediate_size=96), CorruptModelError, r"not \(32, 96\)"),
        (lambda c: c.update(vocab_size=60), CorruptModelError, "size mismatch"),
        (lambda c: c.update(attention_bias=True), CorruptModelError, "bias is only in one"),
        (lambda c: c.update(hidden_size="x"), CorruptModelError, "does not describe a Llama"),
    ]
    save_gptq(quantized(), tmp_path)
    right = (tmp_path / "config.json").read_bytes()

    def load_changed(change):
        (tmp_path / "config.json").write_bytes(right)
        edit(tmp_path, change)
        load_gptq(tmp_path)

    assert not wrong_refusals(
        (partial(load_changed, change), error, words) for change, error, words in changes
    )


def test_a_model_with_an_adapter_is_not_written(tmp_path):
    model = quantized()
    inject(model, LoRAConfig(rank=2, target_modules=("q_proj",)))
    with pytest.raises(ModelError, match=r"unmerged adapter in model.layers.0.self_attn.q_proj"):
        save_gptq(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_a_model_on_one_grid_is_written(tmp_path):
    model = quantized()
    other = copy.deepcopy(model)
    weight = round_to_nearest(torch.randn(64, 32), Grid(8, 32))
    other.model.layers[0].mlp.up_proj = QuantizedLinear(weight)
    with pytest.raises(ValueError, match="to one Grid"):
        save_gptq(other, tmp_path)
    plain = LlamaForCausalLM(LlamaConfig(**SIZES))
    with pytest.raises(ValueError, match="its 0 quantized layers"):
        save_gptq(plain, tmp_path)
    with pytest.raises(TypeError, match="expected a LlamaForCausalLM"):
        save_gptq(model.model, tmp_path)
    assert not list(tmp_path.iterdir())
