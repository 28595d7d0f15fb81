"""Counts of parameters equal PEFT's; estimates of memory equal measurements."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import ModelOutput

from course_pkg.acceleration.quantization.blockwise import effective_bits
from course_pkg.adapters.accounting import (
    activation_bytes,
    count_parameters,
    estimate_memory,
    measure_step,
)
from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.prefixes import PrefixTuningConfig
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.adapters.qlora import quantize_model
from tests.parity.small_models import FAMILIES, family, gpt2, llama
from tests.refusals import require_refusals
from tests.tables import each_row

LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA |= {"tie_word_embeddings": False}
LLAMA_2_7B = LlamaConfig(**LLAMA, vocab_size=32000, intermediate_size=11008)
TWO_LAYERS = LLAMA | {"num_hidden_layers": 2, "vocab_size": 128256, "num_key_value_heads": 8}
LLAMA_3_8B = LlamaConfig(**TWO_LAYERS, intermediate_size=14336)  # 2 of its 32 layers
SMALL = FAMILIES["llama"]
QV = ["q_proj", "v_proj"]
QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]
KVF = ["k_proj", "v_proj", "down_proj"]


@each_row(
    ("targets", "trainable", "share"),
    [
        (QV, 4_194_304, 0.000622),  # 32 layers · 2 modules · 8·(4096 + 4096)
        (QKVO, 8_388_608, 0.001243),  # twice the modules, twice the parameters
        ("all-linear", 19_988_480, 0.002958),  # + 32 · 3 · 8·(4096 + 11008)
    ],
)
def test_llama_2_7b_has_the_documented_counts(targets, trainable, share):
    count = count_parameters(LLAMA_2_7B, "lora", LoRAConfig(rank=8, target_modules=targets))
    assert count.base == 6_738_415_616
    assert count.trainable == count.adapter == trainable
    assert count.total == 6_738_415_616 + trainable
    assert count.share == pytest.approx(share, abs=5e-7)


@each_row("name", FAMILIES)
def test_a_base_has_the_parameters_of_the_built_model(name):
    config = FAMILIES[name]
    before = config.to_dict()
    full = count_parameters(config)
    assert full.base == full.trainable == full.total == family(name).num_parameters()
    assert full.share == 1 and full.adapter == 0
    assert config.to_dict() == before


def test_gpt2s_transposed_layers_are_counted():
    count = count_parameters(gpt2().config, "lora", LoRAConfig(rank=8))
    assert count.base == gpt2().num_parameters()
    assert count.adapter == 2 * 8 * ((16 + 48) + (16 + 16) + (16 + 64) + (64 + 16))


@each_row(
    ("method", "adapter", "trainable"),
    [
        # r = 8 on q (4096 → 4096) and v (4096 → 1024: 8 key-value heads of 128).
        ("lora", LoRAConfig(rank=8, target_modules=QV), 2 * (8 * 8192 + 8 * 5120)),
        # And a magnitude for each output.
        ("dora", DoRAConfig(rank=8, target_modules=QV), 2 * (8 * 8192 + 4096 + 8 * 5120 + 1024)),
        # r = 12: A, B, and 12 entries of Λ for each module.
        (
            "adalora",
            AdaLoRAConfig(total_step=100, initial_rank=12, target_modules=QV),
            2 * 12 * ((4096 + 4096 + 1) + (4096 + 1024 + 1)),
        ),
        # Outputs of k and v, and the input of the last feed-forward layer.
        ("ia3", IA3Config(target_modules=KVF), 2 * (1024 + 1024 + 14336)),
        # Down to 16 numbers and up again, with biases, behind two layers of width 4096.
        (
            "bottleneck",
            BottleneckConfig(16, target_modules=["o_proj", "down_proj"]),
            2 * 2 * (2 * 16 * 4096 + 16 + 4096),
        ),
        ("prompt", PromptTuningConfig(20), 20 * 4096),
        # 20 keys and 20 values of 8 heads with 128 numbers in each layer.
        ("prefix", PrefixTuningConfig(20), 2 * 2 * 20 * 1024),
    ],
)
def test_every_methods_parameters_and_memory_by_hand(method, adapter, trainable):
    count = count_parameters(LLAMA_3_8B, method, adapter)
    assert count.adapter == count.trainable == trainable
    assert count.base == 8_030_261_248 - 30 * 218_112_000 and count.total == count.base + trainable
    estimate = estimate_memory(LLAMA_3_8B, method, adapter)
    parts = estimate.weights, estimate.gradients, estimate.optimizer_state
    assert parts == (2 * count.base + 4 * trainable, 4 * trainable, 8 * trainable)
    assert estimate.master_weights == 0


def test_a_saved_module_and_a_rank_pattern_are_counted():
    saved = IA3Config(target_modules=KVF, modules_to_save=["lm_head"])
    without = count_parameters(SMALL, "ia3", IA3Config(target_modules=KVF)).trainable
    assert count_parameters(SMALL, "ia3", saved).trainable == without + 97 * 32
    names = [f"model.layers.{i}.self_attn.q_proj.lora_E" for i in range(2)]
    pattern = dict(zip(names, [(True, False), (False, False)], strict=True))
    pruned = AdaLoRAConfig(9, 2, 1, target_modules=["q_proj"], rank_pattern=pattern)
    assert count_parameters(SMALL, "adalora", pruned).trainable == 32 + 32 + 1


def test_a_reparametrized_prefix_counts_its_mlp():
    prefix = PrefixTuningConfig(5, reparametrize=True)
    # 5 embeddings of width 16 (2 heads of 8); 16 → 16 → a key and a value in each of 2 layers.
    expected = 5 * 16 + (16 + 1) * 16 + (16 + 1) * 2 * 2 * 16
    assert count_parameters(SMALL, "prefix", prefix).trainable == expected


def test_full_fine_tuning_takes_16_bytes_per_parameter():
    n = 6_738_415_616
    estimate = estimate_memory(LLAMA_2_7B)
    parts = estimate.weights, estimate.gradients, estimate.master_weights, estimate.optimizer_state
    assert parts == (2 * n, 2 * n, 4 * n, 8 * n)
    assert estimate.total == 16 * n + estimate.activations


def test_qlora_quantizes_the_linear_layers_only():
    lora = LoRAConfig(rank=8, target_modules=QV)
    estimate = estimate_memory(LLAMA_2_7B, "qlora", lora)
    linear = 32 * (4 * 4096**2 + 3 * 4096 * 11008)  # the head and the embedding stay 16-bit
    rest = 6_738_415_616 - linear
    offsets = 4 * 32 * 7  # each weight has an fp32 offset for its scales
    expected = linear * effective_bits(64, 256) / 8 + offsets + 2 * rest + 4 * 4_194_304
    assert estimate.weights == pytest.approx(expected, rel=1e-12)
    sixteen = estimate_memory(LLAMA_2_7B, "lora", lora)
    assert estimate.gradients == sixteen.gradients and estimate.total < sixteen.total
    notes = "\n".join(estimate.assumptions)
    assert "AdamW" in notes and "NF4 at 4.127 bits" in notes


@each_row("length", [32, 256])
def test_the_activation_formula_is_close_to_what_autograd_saves(length):
    """For a GPT-2 in bf16 with dropout, the architecture that the formula describes."""
    config = GPT2Config(
        n_embd=256,
        n_head=4,
        n_layer=2,
        vocab_size=64,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="eager",
        activation_function="gelu",
    )
    model = GPT2LMHeadModel(config).to(torch.bfloat16).train()
    tokens = torch.randint(64, (2, length), generator=torch.Generator().manual_seed(0))
    measured = measure_step(model, {"input_ids": tokens, "labels": tokens}).saved
    estimate = activation_bytes(config, 2, length)
    # The formula counts 2-byte activations and 1-byte masks exactly; GPT-2 saves a few more.
    assert 0.7 <= measured / estimate <= 1.4


def test_activation_modes_by_hand():
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3, "vocab_size": 16}
    config = LlamaConfig(**sizes)
    # s = 4, b = 2, h = 8, a = 2: sbh = 64; 34·64 = 2176; 5·a·s²·b = 320; ends 4·4·2·(8 + 16) = 768.
    assert activation_bytes(config, 2, 4) == 3 * (2176 + 320) + 768
    assert activation_bytes(config, 2, 4, "flash") == 3 * 2176 + 768
    assert activation_bytes(config, 2, 4, "checkpointed") == 3 * 128 + 2496 + 768


def test_a_method_and_its_config_must_fit():
    require_refusals(
        (SMALL, "lora", None, 'method "lora" needs a LoRAConfig'),
        (SMALL, "full", LoRAConfig(), "takes no adapter config"),
        (SMALL, "dora", LoRAConfig(), "needs a DoRAConfig"),
        (SMALL, "full tuning", None, "method must be one of full"),
        (SMALL, "lora", LoRAConfig(target_modules=["x"]), "'x'"),
        of=count_parameters,
    )


@each_row(
    ("settings", "says"),
    [
        ({"activations": "none"}, "activations must be one"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"sequence_length": 1.5}, "sequence_length must be an integer of at least 1, got 1.5"),
    ],
)
def test_impossible_sizes_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        estimate_memory(SMALL, **settings)


def test_only_a_transformers_config_is_accepted():
    with pytest.raises(TypeError, match="got LlamaForCausalLM"):
        count_parameters(llama())
    with pytest.raises(ValueError, match="str lacks one of hidden_size"):
        activation_bytes("llama", 1, 1)


TOKENS = torch.randint(61, (2, 32), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": TOKENS, "labels": TOKENS}


class Squares(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, use_cache):
        return ModelOutput(loss=self.layer(x).square().sum())


def trainable_llama(layers=4):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 61}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).train()


def test_a_linear_layer_by_hand():
    # 10 inputs of 64 for the gradient of W, 10 outputs of 32 for that of the square; fp32.
    cost = measure_step(Squares(nn.Linear(64, 32)), {"x": torch.randn(10, 64)})
    assert cost.weights == cost.gradients == 4 * (64 * 32 + 32)
    assert cost.saved == 4 * (10 * 64 + 10 * 32)
    assert cost.seconds > 0


def test_gradient_checkpointing_saves_memory_and_has_the_same_loss():
    model = trainable_llama()
    quantize_model(model)
    inject(model, LoRAConfig(rank=2))
    stored = measure_step(model, BATCH)
    model.activation_checkpointing_enable()
    checkpointed = measure_step(model, BATCH)
    assert checkpointed.loss == pytest.approx(stored.loss, rel=1e-6)
    assert checkpointed.saved < stored.saved / 4
    assert checkpointed.gradients == stored.gradients > 0
    # Each further layer keeps its input only: 2 · 32 tokens of 64 numbers.
    deeper = trainable_llama(layers=5)
    quantize_model(deeper)
    inject(deeper, LoRAConfig(rank=2))
    deeper.activation_checkpointing_enable()
    assert measure_step(deeper, BATCH).saved - checkpointed.saved == 4 * 2 * 32 * 64


def test_the_model_keeps_its_gradients_and_its_weights():
    model = trainable_llama(layers=1)
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measure_step(model, BATCH)
    assert torch.equal(model.lm_head.weight.grad, torch.ones_like(model.lm_head.weight))
    assert model.model.norm.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_impossible_steps_say_why():
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        measure_step(trainable_llama().requires_grad_(False), BATCH)
    with pytest.raises(ValueError, match='the batch needs "labels"'):
        measure_step(trainable_llama(), {"input_ids": TOKENS})
    with pytest.raises(TypeError, match=r"model must be an nn\.Module"):
        measure_step("llama", BATCH)
