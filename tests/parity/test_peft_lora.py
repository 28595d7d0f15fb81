"""LoRA compared with PEFT at the same weights: outputs, merges, training, sums, dtypes."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from course_pkg.adapters.accounting import count_parameters
from course_pkg.adapters.combining import add_weighted_adapter
from course_pkg.adapters.injection import (
    adapter_layers,
    disable_adapters,
    inject,
    merge_adapters,
    set_adapter,
    trainable_parameters,
    unmerge_adapters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train

HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, **HEADS}
OPT = {"vocab_size": 97, "hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 32, **HEADS}
T5 = {"vocab_size": 97, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL, num_key_value_heads=2, **ENDS)),
    "tied": (LlamaForCausalLM, LlamaConfig(**SMALL, tie_word_embeddings=True, **ENDS)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SMALL, num_key_value_heads=1, **ENDS)),
    "opt": (OPTForCausalLM, OPTConfig(**OPT, dropout=0.0, **ENDS)),
    "t5": (T5ForConditionalGeneration, T5Config(**T5, dropout_rate=0.0, pad_token_id=0)),
    "bert": (BertForMaskedLM, BertConfig(**SMALL, hidden_dropout_prob=0.0, pad_token_id=0)),
}
MIXTRAL = MixtralForCausalLM, MixtralConfig(**SMALL, num_key_value_heads=2, **ENDS)
TOKENS = torch.randint(3, 97, (2, 11), generator=torch.Generator().manual_seed(0))


def build(name, dtype=torch.float32):
    kind, config = {**MODELS, "mixtral": MIXTRAL}[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(config).to(dtype).eval()


def theirs(model, config, adapter_name="default"):
    targets = config.target_modules
    return get_peft_model(
        model,
        LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            use_rslora=config.use_rslora,
            target_modules=targets if isinstance(targets, str) else list(targets),
        ),
        adapter_name,
    ).eval()


def give_same_weights(ours, peft_model, name="default", seed=0):
    """Fill A and B with random values of A's initial scale, and copy them to PEFT's modules."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module, layer in adapter_layers(ours).items():
            if name not in layer.configs:
                continue
            other = peft_model.base_model.model.get_submodule(module)
            for mine, yours in ((layer.lora_A, other.lora_A), (layer.lora_B, other.lora_B)):
                mine[name].copy_(0.1 * torch.randn(mine[name].shape, generator=generator))
                yours[name].weight.copy_(mine[name])


def pair(name, config, dtype=torch.float32):
    ours, peft_model = build(name, dtype), theirs(build(name, dtype), config)
    inject(ours, config)
    give_same_weights(ours, peft_model)
    return ours, peft_model


def logits(model):
    inputs = {"input_ids": TOKENS}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = TOKENS
    with torch.no_grad():
        return model(**inputs).logits


def relative_error(out, reference):
    return ((out.double() - reference.double()).norm() / reference.double().norm()).item()


CONFIGS = {
    "all": LoRAConfig(rank=4, alpha=7.0),
    "rslora": LoRAConfig(rank=3, alpha=4, use_rslora=True),
    "rank above width": LoRAConfig(rank=40),
}


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_outputs_equal_pefts(model_name, config):
    ours, peft_model = pair(model_name, config)
    base = logits(build(model_name))
    expected = logits(peft_model)
    assert relative_error(expected, base) > 1e-2, "the adapter must have an effect"
    assert relative_error(logits(ours), expected) <= 1e-6
    ours_64, peft_64 = pair(model_name, config, torch.float64)
    assert relative_error(logits(ours_64), logits(peft_64)) <= 1e-13
    with disable_adapters(ours), peft_model.disable_adapter():
        assert torch.equal(logits(ours), base) and torch.equal(logits(peft_model), base)


@pytest.mark.parametrize("model_name", ["llama", "qwen2", "opt"])
def test_merged_weights_and_outputs_equal_pefts(model_name):
    ours, peft_model = pair(model_name, CONFIGS["rslora"])
    merge_adapters(ours)
    peft_model.merge_adapter()
    for name, layer in adapter_layers(ours).items():
        other = peft_model.base_model.model.get_submodule(name)
        assert relative_error(layer.weight, other.base_layer.weight) <= 1e-6
    assert relative_error(logits(ours), logits(peft_model)) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_our_unmerge_is_exact_where_pefts_is_not(dtype):
    ours, peft_model = pair("llama", CONFIGS["all"], dtype)
    weight = build("llama", dtype).model.layers[0].mlp.up_proj.weight
    merge_adapters(ours)
    unmerge_adapters(ours)
    peft_model.merge_adapter()
    peft_model.unmerge_adapter()
    name = "model.layers.0.mlp.up_proj"
    assert torch.equal(ours.get_submodule(name).base.weight, weight)
    assert not torch.equal(
        peft_model.base_model.model.get_submodule(name).base_layer.weight, weight
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_mixed_dtypes_are_handled_as_in_peft(dtype):
    ours, peft_model = pair("llama", CONFIGS["all"], dtype)
    for name, layer in adapter_layers(ours).items():
        other = peft_model.base_model.model.get_submodule(name)
        assert layer.lora_A["default"].dtype == other.lora_A["default"].weight.dtype
    mine, yours = logits(ours), logits(peft_model)
    assert mine.dtype == yours.dtype == dtype
    # Compared with fp64, our error is at most twice PEFT's at the same precision.
    exact = build("llama", dtype).double()
    inject(exact, CONFIGS["all"])
    for name, layer in adapter_layers(exact).items():
        source = ours.get_submodule(name)
        with torch.no_grad():
            layer.lora_A["default"].copy_(source.lora_A["default"])
            layer.lora_B["default"].copy_(source.lora_B["default"])
    reference = logits(exact)
    assert relative_error(mine, reference) <= 2 * relative_error(yours, reference) + 1e-15


def batches(count=5):
    generator = torch.Generator().manual_seed(1)
    made = []
    for number in range(count):
        tokens = torch.randint(3, 97, (2, 8 + number), generator=generator)
        labels = tokens.clone()
        labels[0, : 2 + number] = -100
        made.append({"input_ids": tokens, "labels": labels})
    return made


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("model_name", ["llama", "qwen2"])
def test_five_training_steps_give_pefts_losses_and_weights(model_name, dropout):
    config = LoRAConfig(rank=4, alpha=8, dropout=dropout)
    ours, peft_model = pair(model_name, config)
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    settings = TrainConfig(
        steps=5, learning_rate=1e-2, accumulation=2, warmup_steps=2, progress=False, seed=3
    )
    mine, yours = (train(model, batches(), settings) for model in (ours, peft_model))
    assert mine.losses == pytest.approx(yours.losses, abs=1e-5)
    norms = [[step.grad_norm for step in history.steps] for history in (mine, yours)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    for name, layer in adapter_layers(ours).items():
        other = peft_model.base_model.model.get_submodule(name)
        trained = layer.lora_B["default"]
        assert relative_error(trained, before[f"{name}.lora_B.default"]) > 0.05, (
            "training must change it"
        )
        assert relative_error(trained, other.lora_B["default"].weight) < 1e-3


TARGETS = {
    "all-linear": "all-linear",
    "endings": {"t5": ["q", "v"], "bert": ["query", "attention.output.dense"]},
    "regex": {"t5": r"decoder\..*\.(wi|wo)", "bert": r".*\.1\..*(key|value)"},
    "head": {"t5": ["lm_head"], "bert": ["decoder"]},
}


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("kind", TARGETS)
def test_the_same_modules_are_wrapped(model_name, kind):
    fallback = {
        "all-linear": "all-linear",
        "endings": ["q_proj", "self_attn.v_proj"],
        "regex": r"model\..*\.1\..*_proj",
        "head": ["lm_head"],
    }[kind]
    choice = TARGETS[kind]
    targets = choice if isinstance(choice, str) else choice.get(model_name, fallback)
    config = LoRAConfig(rank=2, target_modules=targets)
    ours = build(model_name)
    names = inject(ours, config)
    peft_model = theirs(build(model_name), config)
    assert sorted(names) == sorted(set(peft_model.targeted_module_names))
    prefix = "base_model.model."
    trained = {n.removeprefix(prefix) for n, p in peft_model.named_parameters() if p.requires_grad}
    assert {f"{name}.weight" for name in trainable_parameters(ours)} == trained
    trainable, everything = peft_model.get_nb_trainable_parameters()
    if kind != "head":  # a wrapped tied head is listed twice by PEFT
        count = count_parameters(MODELS[model_name][1], "lora", config)
        assert (count.trainable, count.total) == (trainable, everything)


def two_adapters(configs):
    ours, peft_model = build("llama"), None
    for name, config in configs.items():
        inject(ours, config, name)
        if peft_model is None:
            peft_model = theirs(build("llama"), config, name)
        else:
            peft_model.add_adapter(
                name,
                LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules="all-linear"),
            )
    for seed, name in enumerate(configs):
        give_same_weights(ours, peft_model, name, seed)
    return ours, peft_model.eval()


def test_switching_and_combining_equal_pefts():
    configs = {"a": LoRAConfig(rank=2), "b": LoRAConfig(rank=5, alpha=3)}
    ours, peft_model = two_adapters(configs)
    for choice in ("a", "b", ["a", "b"]):
        set_adapter(ours, choice)
        peft_model.base_model.set_adapter(choice)
        assert relative_error(logits(ours), logits(peft_model)) <= 1e-6
        mine = {name.rpartition(".")[2] for name in trainable_parameters(ours)}
        assert mine == set(choice)


@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.3, -2.0]])
def test_a_weighted_sum_equals_pefts_cat_and_not_its_linear(weights):
    configs = {"a": LoRAConfig(rank=2), "b": LoRAConfig(rank=2, alpha=3)}
    ours, peft_model = two_adapters(configs)
    add_weighted_adapter(ours, ["a", "b"], weights, "mix")
    set_adapter(ours, "mix")
    outputs = {}
    for kind in ("cat", "linear"):
        if kind == "cat" or min(weights) > 0:  # "linear" uses the square root of the weights
            peft_model.add_weighted_adapter(["a", "b"], weights, kind, combination_type=kind)
            peft_model.set_adapter(kind)
            outputs[kind] = logits(peft_model)
    assert relative_error(logits(ours), outputs["cat"]) <= 1e-6
    if "linear" in outputs:
        assert relative_error(logits(ours), outputs["linear"]) > 1e-2


def test_a_weighted_sum_of_rslora_adapters_is_right_here_and_wrong_in_peft():
    """PEFT 0.21 keeps use_rslora for its "cat", so the sum is √rank times too large."""
    config = LoRAConfig(rank=4, use_rslora=True)
    ours, peft_model = build("llama"), theirs(build("llama"), config, "a")
    second = LoraConfig(r=4, lora_alpha=16, use_rslora=True, target_modules="all-linear")
    peft_model.add_adapter("b", second)
    for seed, name in enumerate("ab"):
        inject(ours, config, name)
        give_same_weights(ours, peft_model, name, seed)
    add_weighted_adapter(ours, ["a", "b"], [1, 1], "mix")
    peft_model.add_weighted_adapter(["a", "b"], [1, 1], "mix", combination_type="cat")
    for name, layer in adapter_layers(ours).items():
        expected = layer.delta_weight("a") + layer.delta_weight("b")
        assert relative_error(layer.delta_weight("mix"), expected) <= 1e-6
        pefts_sum = peft_model.base_model.model.get_submodule(name).get_delta_weight("mix")
        assert relative_error(pefts_sum, 8**0.5 * expected) <= 1e-6


def test_in_a_mixture_of_experts_only_linear_layers_are_adapted():
    """transformers 5 fuses the experts into one tensor, which is not an nn.Linear."""
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    config = LoRAConfig(rank=2, target_modules=attention)
    ours, peft_model = pair("mixtral", config)
    assert relative_error(logits(ours), logits(peft_model)) <= 1e-6
    assert sorted(adapter_layers(ours)) == sorted(set(peft_model.targeted_module_names))
    assert sorted(inject(build("mixtral"), LoRAConfig())) == sorted(adapter_layers(ours))
    trainable, everything = peft_model.get_nb_trainable_parameters()
    count = count_parameters(MIXTRAL[1], "lora", config)
    assert (count.trainable, count.total) == (trainable, everything)
