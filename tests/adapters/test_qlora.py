"""Linear4bit, a model of such layers with adapters on top, and merging on request."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from course_pkg.acceleration.quantization.blockwise import quantize
from course_pkg.adapters.injection import (
    adapter_layers,
    disable_adapters,
    inject,
    merge_adapters,
    remove_adapters,
    trainable_parameters,
)
from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.adapters.qlora import (
    Linear4bit,
    merge_quantized,
    quantize_model,
    requantized,
)
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from tests.acceleration.quantization.examples import normal
from tests.parity.small_models import error, run
from tests.refusals import require_refusals
from tests.tables import each_row

TOKENS = torch.randint(259, (2, 16), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS), "labels": TOKENS}


def linear(in_features=128, out_features=24, *, dtype=torch.float32):
    layer = nn.Linear(in_features, out_features)
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=number))
    return layer.to(dtype)


def with_adapter(scale=0.1, **options):
    """A LoRALinear over 4 bits whose B is not zero."""
    layer = LoRALinear(Linear4bit(linear(), **options), LoRAConfig(rank=2, alpha=2))
    with torch.no_grad():
        layer.lora_B["default"].copy_(scale * normal(24, 2, seed=5))
    return layer


def logits(model):
    return run(model, {"input_ids": TOKENS}).logits


@each_row("double", [False, True])
@each_row("book", ["nf4", "fp4", "int4"])
def test_the_layer_computes_with_the_dequantized_weight(book, double):
    base = linear()
    x = normal(3, 7, 128)
    layer = Linear4bit(base, book, 32, double=double)
    weight = quantize(base.weight, book, 32, double=double).dequantize()
    assert torch.equal(layer.dequantized_weight(), weight)
    assert torch.allclose(layer(x), x @ weight.T + base.bias, atol=1e-4)
    assert isinstance(layer, nn.Linear) and layer.weight.dtype == torch.uint8
    assert layer.weight.shape == (128 * 24 // 2,)


def test_autograd_saves_neither_the_weight_nor_the_input():
    layer = Linear4bit(linear())
    x = normal(5, 128).requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda tensor: tensor):
        (layer(x) * 1.0).sum()
    assert all(tensor.numel() < 128 for tensor in saved)


def test_without_a_gradient_to_the_input_backward_dequantizes_nothing(monkeypatch):
    layer = with_adapter()
    result = layer(normal(2, 128)).sum()
    monkeypatch.setattr("course_pkg.adapters.qlora.quantize", None)
    monkeypatch.setattr(
        "course_pkg.acceleration.quantization.blockwise.QuantizedTensor.dequantize", None
    )
    result.backward()
    assert layer.lora_B["default"].grad is not None


@each_row("stored", [torch.float32, torch.bfloat16, torch.float16])
@each_row("given", [torch.float32, torch.bfloat16])
@each_row("compute", [None, torch.float32, torch.bfloat16])
def test_the_result_has_the_dtype_of_the_input(stored, given, compute):
    layer = Linear4bit(linear(dtype=stored), compute_dtype=compute)
    x = normal(3, 128).to(given).requires_grad_()
    result = layer(x)
    result.sum().backward()
    assert result.dtype == x.grad.dtype == given
    exact = x.double() @ layer.quantized.dequantize(torch.float32).double().T
    exact += layer.bias.double()
    lowest = max(torch.finfo(each).eps for each in (given, compute or given))
    assert error(result.double(), exact) <= 2 * lowest


def test_scales_keep_their_precision_when_the_model_changes_its_dtype():
    layer = Linear4bit(linear())
    before = layer.dequantized_weight()
    moved = copy.deepcopy(layer).to(torch.bfloat16)
    assert torch.equal(moved.dequantized_weight(), before)
    assert moved.bias.dtype == torch.bfloat16 and moved.nested_absmax.dtype == torch.float32
    assert moved(normal(2, 128).bfloat16()).dtype == torch.bfloat16


@pytest.mark.gpu
def test_a_layer_moves_to_a_gpu_and_computes_the_same():
    layer = Linear4bit(linear())
    x = normal(5, 128)
    moved = copy.deepcopy(layer).to("cuda")
    assert torch.equal(moved.dequantized_weight().cpu(), layer.dequantized_weight())
    assert torch.equal(quantize(normal(64, 64).cuda()).codes.cpu(), quantize(normal(64, 64)).codes)
    assert error(moved(x.cuda()).cpu(), layer(x)) <= 1e-5


@each_row(
    ("source", "says"),
    [
        (lambda: linear(), "weight is not quantized: load it before you quantize"),
        (
            lambda: Linear4bit(linear(), "fp4"),
            "the format fp4, blocks of 64, scales in 8 bits, torch.float32, but the layer",
        ),
        (lambda: Linear4bit(linear(in_features=64)), "size mismatch for weight"),
    ],
)
def test_another_kind_of_state_dict_is_refused(source, says):
    layer = Linear4bit(linear())
    with pytest.raises(RuntimeError, match=says):
        layer.load_state_dict(source().state_dict())


def test_print_shows_the_bits():
    # 24·128 weights: 4 + 8/64 + (32 for one block of scales + 32 for the offset) / 3072.
    assert "nf4, blocks of 64, scales in 8 bits, torch.float32, 4.146 bits per weight" in repr(
        Linear4bit(linear())
    )


def test_a_layer_that_cannot_be_quantized_says_why():
    broken = linear().requires_grad_(False).apply(lambda m: m.weight.fill_(float("nan")))
    sizes = "block_size 48 does not divide in_features 128; these divide it: 16, 32, 64, 128"
    require_refusals(
        (lambda: Linear4bit(linear(), "nf3"), "ValueError: code_book must be one of nf4, fp4"),
        (lambda: Linear4bit(linear(), block_size=48), f"ValueError: {sizes}"),
        (lambda: Linear4bit(linear(13)), "ValueError: .*does not divide in_features 13; skip it"),
        (lambda: Linear4bit(linear(), block_size=3), "ValueError: block_size must be even"),
        (lambda: Linear4bit(linear(), compute_dtype=torch.int8), "TypeError: compute_dtype must"),
        (lambda: Linear4bit(nn.Embedding(4, 64)), "TypeError: .*an nn.Linear, got Embedding"),
        (lambda: Linear4bit(Linear4bit(linear())), "ValueError: .*quantized already .Linear4bit"),
        (lambda: Linear4bit(linear(dtype=torch.float64)), "ValueError: .*got torch.float64"),
        (lambda: Linear4bit(broken), "ValueError: .*NaN or infinite entries"),
        (lambda: Linear4bit(nn.Linear(64, 4, device="meta")), "ValueError: .*has no numbers; load"),
        (lambda: Linear4bit(linear())(torch.ones(1, 128).long()), "TypeError: .*got torch.int64"),
        errors=(TypeError, ValueError),
    )


def test_all_linear_layers_are_quantized_but_the_head(tiny):
    model = tiny.model
    before = logits(model)
    names = quantize_model(model)
    assert len(names) == 2 * 7 and not any("lm_head" in name for name in names)
    assert type(model.lm_head) is nn.Linear
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert 0 < error(logits(model), before) < 0.5
    kinds = {type(model.get_submodule(name)) for name in names}
    assert kinds == {Linear4bit}


def test_skip_replaces_the_default(tiny):
    names = quantize_model(tiny.model, skip=["o_proj", "mlp"])
    assert "lm_head" in names and not any("o_proj" in name for name in names)
    assert any("gate_proj" in name for name in names)  # "mlp" is not its ending
    assert tiny.model.lm_head.weight is not tiny.model.get_input_embeddings().weight


def test_training_in_mixed_precision_is_close_to_fp32(tiny):
    quantize_model(tiny.model)
    inject(tiny.model, LoRAConfig(rank=4))
    losses = {}
    for precision in ("fp32", "bf16"):
        config = TrainConfig(steps=4, learning_rate=1e-2, precision=precision, progress=False)
        losses[precision] = train(copy.deepcopy(tiny.model), [BATCH], config).losses
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)
    assert losses["bf16"] != losses["fp32"]


def test_a_classifier_and_what_transformers_keeps_in_fp32_are_left_out():
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "pad_token_id": 0}
    llama = LlamaForSequenceClassification(LlamaConfig(**sizes, num_attention_heads=2))
    assert len(quantize_model(llama)) == 7 and type(llama.score) is nn.Linear
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=97, d_model=64, d_ff=64, d_kv=32, num_layers=1, num_heads=2)
    )
    names = quantize_model(t5)
    assert len(names) == 4 + 1 + 8 + 1  # attention once and twice, wi; T5 keeps wo in fp32
    result = t5(input_ids=TOKENS % 97, decoder_input_ids=TOKENS % 97)
    assert torch.isfinite(result.logits).all()


def test_a_subclass_of_linear_is_left_as_it_is():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 2), "up": nn.Linear(64, 8)})
    assert quantize_model(model) == ["up"]


def injected(model):
    inject(model, LoRAConfig(rank=2))
    return model


def one_bad_layer(model):
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("inf")
    return model


@pytest.mark.parametrize(
    ("change", "options", "error", "says"),
    [
        (
            lambda m: quantize_model(m) and m,
            {},
            ValueError,
            "'model.layers.0.self_attn.q_proj': the layer is quantized already",
        ),
        (injected, {}, ValueError, "q_proj' has adapters; quantize the model before"),
        (one_bad_layer, {}, ValueError, "'model.layers.1.mlp.down_proj': .* infinite"),
        (lambda m: m, {"block_size": 128}, ValueError, "q_proj': block_size 128 does not divide"),
        (lambda m: m, {"book": "int8"}, ValueError, "code_book must be one of"),
        (lambda m: m, {"skip": ["q_prj"]}, ValueError, "skip 'q_prj' matches no module"),
        (lambda m: m, {"skip": "q_proj"}, TypeError, r"write \['q_proj'\]"),
        (lambda m: m.model.norm, {}, ValueError, "LlamaRMSNorm has no nn.Linear to quantize"),
        (lambda m: (m, 1), {}, TypeError, "model must be an nn.Module, got tuple"),
    ],
)
def test_a_model_that_cannot_be_quantized_stays_as_it_is(tiny, change, options, error, says):
    model = change(tiny.model)
    modules = list(tiny.model.modules())
    with pytest.raises(error, match=says):
        quantize_model(model, **options)
    assert modules == list(tiny.model.modules())


def test_lora_on_top_trains_the_adapter_and_nothing_else(tiny):
    model = tiny.model
    quantize_model(model)
    base = copy.deepcopy(model.state_dict())
    start = logits(model)
    inject(model, LoRAConfig(rank=4))
    assert torch.equal(logits(model), start)
    assert {p.dtype for p in trainable_parameters(model).values()} == {torch.float32}
    losses = train(model, [BATCH], TrainConfig(steps=5, learning_rate=1e-2, progress=False)).losses
    assert losses[-1] < losses[0]
    with disable_adapters(model):
        assert torch.equal(logits(model), start)
    with pytest.raises(ValueError, match="cannot merge into a quantized weight"):
        merge_adapters(model)
    remove_adapters(model)
    assert all(torch.equal(value, base[name]) for name, value in model.state_dict().items())


def test_a_quantized_module_cannot_be_trained_in_full(tiny):
    quantize_model(tiny.model)
    with pytest.raises(ValueError, match=r"v_proj' is quantized, so it can't be trained"):
        inject(tiny.model, LoRAConfig(target_modules=["q_proj"], modules_to_save=["v_proj"]))
    assert not adapter_layers(tiny.model)


def test_requantized_by_definition():
    layer = with_adapter(double=False)
    merged = requantized(layer)
    total = layer.base_weight() + layer.delta_weight("default")
    assert torch.equal(merged.dequantized_weight(), quantize(total, double=False).dequantize())
    assert (
        torch.equal(merged.bias, layer.bias)
        and merged.quantized.describe() == layer.base.quantized.describe()
    )
    assert not layer.merged


def test_a_model_is_merged_into_4_bits(tiny):
    model = tiny.model
    quantize_model(model)
    inject(model, LoRAConfig(rank=2, target_modules=["q_proj", "embed_tokens"]))
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.add_(normal(*parameter.shape) / 20)
    layer = adapter_layers(model)["model.layers.0.self_attn.q_proj"]
    expected = requantized(layer).dequantized_weight()
    before = logits(model)
    merge_quantized(model)
    assert not adapter_layers(model) and type(model.model.embed_tokens) is nn.Embedding
    merged = model.model.layers[0].self_attn.q_proj
    assert torch.equal(merged.dequantized_weight(), expected)
    assert error(logits(model), before) < 0.2


def test_merging_with_a_bad_adapter_changes_nothing(tiny):
    model = tiny.model
    quantize_model(model, skip=["lm_head", "v_proj"])
    inject(model, LoRAConfig(rank=2, target_modules=["q_proj", "v_proj"]))
    layers = adapter_layers(model)
    for bad in ("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"):
        before = layers[bad].lora_B["default"].detach().clone()
        with torch.no_grad():
            layers[bad].lora_B["default"][0] = float("nan")
        with pytest.raises(ValueError, match=r"not finite|NaN"):
            merge_quantized(model)
        assert adapter_layers(model) == layers and not any(la.merged for la in layers.values())
        with torch.no_grad():
            layers[bad].lora_B["default"].copy_(before)


def test_what_cannot_be_merged_says_why():
    with pytest.raises(TypeError, match="an adapter layer over a Linear4bit, got one over Linear"):
        requantized(LoRALinear(linear(), LoRAConfig()))
    with pytest.raises(TypeError, match="got one over Linear4bit"):
        requantized(Linear4bit(linear()))
    layer = with_adapter()
    with disable_adapters(nn.Sequential(layer)), pytest.raises(RuntimeError, match="disabled"):
        requantized(layer)
    layer.set_active([])
    assert requantized(layer) is layer.base
