"""Counts and bytes, compared with hand calculations, the documents and real models."""

import bitsandbytes.functional as bnb
import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    Qwen2Config,
    T5Config,
    T5ForConditionalGeneration,
)

from course_pkg.adapters import training_memory
from course_pkg.adapters.accounting import count_parameters
from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.adapters.prefixes import PrefixTuningConfig
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.adapters.training_memory import activation_bytes, estimate_memory, measure_step
from course_pkg.lm.load import load
from course_pkg.quantization.blockwise import effective_bits

LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA |= {"tie_word_embeddings": False}
LLAMA_2_7B = LlamaConfig(**LLAMA, vocab_size=32000, intermediate_size=11008)
LLAMA_3_8B = LlamaConfig(**LLAMA, vocab_size=128256, intermediate_size=14336, num_key_value_heads=8)
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4, **ENDS}
SMALL = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, **HEADS}
QV, QKVO = ["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj"]


@pytest.mark.parametrize(
    ("out_features", "in_features", "adapter", "full"),
    [(4096, 4096, 65_536, 16_777_216), (3072, 768, 30_720, 2_359_296)],
)
def test_layers_have_the_counts_in_the_documents(out_features, in_features, adapter, full):
    # 8·(4096 + 4096) = 65,536 of 4096²; 8·(768 + 3072) = 30,720 of 768·3072.
    layer = LoRALinear(
        nn.Linear(in_features, out_features, bias=False, device="meta"), LoRAConfig(rank=8)
    )
    assert sum(p.numel() for p in layer.parameters() if p.requires_grad) == adapter
    assert layer.weight.numel() == full


@pytest.mark.parametrize(
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


def test_llama_3_8b_has_narrow_keys_and_values():
    # k and v go from 4096 to 8 heads of 128: 32·(8·(4096 + 4096) + 8·(4096 + 1024)) for q, v.
    count = count_parameters(LLAMA_3_8B, "lora", LoRAConfig(rank=8, target_modules=QV))
    assert count.base == 8_030_261_248
    assert count.trainable == 32 * (8 * 8192 + 8 * 5120) == 3_407_872


MODELS = {
    "untied llama": LlamaConfig(**SMALL, num_key_value_heads=2),
    "tied llama": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen2, biases": Qwen2Config(**SMALL, num_key_value_heads=1),
    "opt": OPTConfig(vocab_size=97, hidden_size=32, ffn_dim=48, word_embed_proj_dim=32, **HEADS),
    "mixture of experts": MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4),
}


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_counts_equal_those_of_a_built_model(config):
    model = AutoModelForCausalLM.from_config(config)
    full = count_parameters(config)
    assert full.base == full.trainable == full.total == model.num_parameters()
    assert full.share == 1 and full.adapter == 0
    lora = LoRAConfig(rank=3)
    inject(model, lora)
    for method in ("lora", "qlora"):
        count = count_parameters(config, method, lora)
        trained = sum(p.numel() for p in trainable_parameters(model).values())
        assert count.trainable == trained > 0
        assert count.total == sum(p.numel() for p in model.parameters())


def test_encoders_and_encoder_decoders_are_counted_in_full():
    t5 = T5Config(vocab_size=97, d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4)
    assert count_parameters(t5).base == T5ForConditionalGeneration(t5).num_parameters()
    bert = BertConfig(**SMALL)
    assert count_parameters(bert).base == BertForMaskedLM(bert).num_parameters()
    gpt2 = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=97, **ENDS)
    assert count_parameters(gpt2).base == GPT2LMHeadModel(gpt2).num_parameters()
    count = count_parameters(gpt2, "lora", LoRAConfig(rank=8))
    assert count.adapter == 8 * ((8 + 24) + (8 + 8) + (8 + 32) + (32 + 8))


KVF = ["k_proj", "v_proj", "down_proj"]


@pytest.mark.parametrize(
    ("method", "adapter", "trainable"),
    [
        # r = 8 on q (4096 → 4096) and v (4096 → 1024), and a magnitude for each output.
        ("dora", DoRAConfig(rank=8, target_modules=QV), 32 * (8 * 8192 + 4096 + 8 * 5120 + 1024)),
        # r = 12: A, B, and 12 entries of Λ for each module.
        (
            "adalora",
            AdaLoRAConfig(total_step=100, initial_rank=12, target_modules=QV),
            32 * 12 * ((4096 + 4096 + 1) + (4096 + 1024 + 1)),
        ),
        # Outputs of k and v, and the input of the last feed-forward layer.
        ("ia3", IA3Config(target_modules=KVF), 32 * (1024 + 1024 + 14336)),
        # Down to 16 numbers and up again, with biases, behind two layers of width 4096.
        (
            "bottleneck",
            BottleneckConfig(16, target_modules=["o_proj", "down_proj"]),
            32 * 2 * (2 * 16 * 4096 + 16 + 4096),
        ),
        ("prompt", PromptTuningConfig(20), 20 * 4096),
        # 20 keys and 20 values of 8 heads with 128 numbers in each of 32 layers.
        ("prefix", PrefixTuningConfig(20), 32 * 2 * 20 * 1024),
    ],
)
def test_every_methods_parameters_by_hand(method, adapter, trainable):
    count = count_parameters(LLAMA_3_8B, method, adapter)
    assert count.adapter == count.trainable == trainable
    assert count.base == 8_030_261_248 and count.total == count.base + trainable
    estimate = estimate_memory(LLAMA_3_8B, method, adapter)
    parts = estimate.weights, estimate.gradients, estimate.optimizer_state
    assert parts == (2 * count.base + 4 * trainable, 4 * trainable, 8 * trainable)


def test_a_saved_module_and_a_rank_pattern_are_counted():
    config = LlamaConfig(**SMALL, tie_word_embeddings=False)
    saved = IA3Config(target_modules=KVF, modules_to_save=["lm_head"])
    without = count_parameters(config, "ia3", IA3Config(target_modules=KVF)).trainable
    assert count_parameters(config, "ia3", saved).trainable == without + 97 * 32
    names = [f"model.layers.{i}.self_attn.q_proj.lora_E" for i in range(2)]
    pattern = dict(zip(names, [(True, False), (False, False)], strict=True))
    pruned = AdaLoRAConfig(9, 2, 1, target_modules=["q_proj"], rank_pattern=pattern)
    assert count_parameters(config, "adalora", pruned).trainable == 32 + 32 + 1


def test_a_reparametrized_prefix_counts_its_mlp():
    config = LlamaConfig(**SMALL, num_key_value_heads=2)
    prefix = PrefixTuningConfig(5, reparametrize=True)
    # 5 embeddings of width 16 (2 heads of 8); 16 → 16 → a key and a value in each of 2 layers.
    expected = 5 * 16 + (16 + 1) * 16 + (16 + 1) * 2 * 2 * 16
    assert count_parameters(config, "prefix", prefix).trainable == expected


def test_the_config_does_not_change():
    config = LlamaConfig(**SMALL)
    before = config.to_dict()
    count_parameters(config)
    assert config.to_dict() == before


def test_the_size_of_smollm2_follows_from_its_config():
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    assert count_parameters(config).base == 134_515_008


def test_full_fine_tuning_takes_16_bytes_per_parameter_or_12_without_master_weights():
    n = 6_738_415_616
    estimate = estimate_memory(LLAMA_2_7B)
    parts = estimate.weights, estimate.gradients, estimate.master_weights, estimate.optimizer_state
    assert parts == (2 * n, 2 * n, 4 * n, 8 * n)
    assert estimate.total == 16 * n + estimate.activations
    without = estimate_memory(LLAMA_2_7B, master_weights=False)
    assert without.master_weights == 0 and without.total == 12 * n + estimate.activations


def test_lora_needs_training_memory_only_for_the_adapter():
    estimate = estimate_memory(LLAMA_2_7B, "lora", LoRAConfig(rank=8, target_modules=QV))
    n, r = 6_738_415_616, 4_194_304
    assert estimate.weights == 2 * n + 4 * r and estimate.master_weights == 0
    assert (estimate.gradients, estimate.optimizer_state) == (4 * r, 8 * r)


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


@pytest.mark.parametrize("size", [(64, 256), (128, 384), (33, 65)])
def test_nf4_takes_the_bytes_that_bitsandbytes_stores(size):
    config = LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=16, **HEADS)
    weight = torch.randn(size, generator=torch.Generator().manual_seed(0))
    packed, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=True)
    scales = state.absmax.nbytes + state.state2.absmax.nbytes + state.offset.nbytes
    stored = packed.nbytes + scales
    model = nn.Sequential(nn.Linear(size[1], size[0], bias=False))
    model.get_output_embeddings = lambda: None
    assert training_memory._nf4_savings(model) == 2 * weight.numel() - stored
    assert count_parameters(config).base > 0


GPT_BLOCK = {"n_embd": 256, "n_head": 4, "n_layer": 2, "vocab_size": 64, "n_positions": 256}


@pytest.mark.parametrize("length", [32, 256])
def test_the_activation_formula_is_close_to_what_autograd_saves(length):
    """For a GPT-2 in bf16 with dropout, the architecture that the formula describes."""
    config = GPT2Config(
        **GPT_BLOCK, **ENDS, attn_implementation="eager", activation_function="gelu"
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


def test_the_assumptions_name_the_optimizer_and_the_bits():
    lora = LoRAConfig(rank=8, target_modules=QV)
    notes = "\n".join(estimate_memory(LLAMA_2_7B, "qlora", lora).assumptions)
    assert "AdamW" in notes and "NF4 at 4.127 bits" in notes


@pytest.mark.parametrize(
    ("method", "adapter", "says"),
    [
        ("lora", None, 'method "lora" needs a LoRAConfig'),
        ("full", LoRAConfig(), "takes no adapter config"),
        ("dora", LoRAConfig(), "needs a DoRAConfig"),
        ("full tuning", None, "method must be one of full"),
        ("lora", LoRAConfig(target_modules=["x"]), "'x'"),
        ("lora", 8, "needs a LoRAConfig, got 8"),
    ],
)
def test_a_method_and_its_config_must_fit(method, adapter, says):
    with pytest.raises(ValueError, match=says):
        count_parameters(LlamaConfig(**SMALL), method, adapter)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"activations": "none"}, "activations must be one"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"sequence_length": 1.5}, "sequence_length must be an integer of at least 1, got 1.5"),
    ],
)
def test_impossible_sizes_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        estimate_memory(LlamaConfig(**SMALL), **settings)


def test_only_a_transformers_config_is_accepted():
    with pytest.raises(TypeError, match="config must be a transformers config, got dict"):
        count_parameters({"a": 1})
    with pytest.raises(TypeError, match="got LlamaForCausalLM"):
        count_parameters(load("tiny").model)
    with pytest.raises(ValueError, match="str lacks one of hidden_size"):
        activation_bytes("llama", 1, 1)
