"""Prompt tuning, and what all methods with virtual tokens share: interface, files, bad input."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from course_pkg.adapters.adapter_io import load_adapter
from course_pkg.adapters.injection import (
    active_adapters,
    adapter_names,
    disable_adapters,
    inject,
    merge_adapters,
    remove_adapters,
    set_adapter,
    trainable_parameters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt, load, save
from course_pkg.adapters.prefixes import PrefixTunedModel, PrefixTuningConfig
from course_pkg.adapters.prompt_io import load_prompt, save_prompt
from course_pkg.adapters.prompts import PromptTunedModel, PromptTuningConfig
from course_pkg.adapters.qlora import quantize_model
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load as load_model
from tests.adapters.builders import CONFIG, WEIGHTS, build, edit_config
from tests.parity.small_models import BATCH, TOKENS, gpt2, logits
from tests.tables import each_row

BOTH = [PromptTuningConfig(4, init="random"), PrefixTuningConfig(4)]
each_method = pytest.mark.parametrize("config", BOTH)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_a_prompt_of_real_tokens_equals_those_tokens_in_the_text():
    model = build()
    prefix = torch.tensor([[5, 6, 7]]).expand(2, -1)
    tuned = adapt(model, PromptTuningConfig(3, init=[5, 6, 7]))
    together = logits(tuned.base, torch.cat([prefix, TOKENS], 1))
    assert torch.allclose(logits(tuned), together[:, 3:], atol=1e-6)
    kept = torch.tensor([0, 4])
    assert torch.allclose(logits(tuned, logits_to_keep=kept), together[:, [3, 7]], atol=1e-6)
    assert torch.allclose(logits(tuned, logits_to_keep=2), together[:, -2:], atol=1e-6)


def test_a_vocabulary_prompt_has_rows_of_the_embedding_and_a_seed_decides_which():
    tuned = [adapt(build(), PromptTuningConfig(9), generator=seeded(s)) for s in (1, 1, 2)]
    prompts = [model.encoders["default"]() for model in tuned]
    rows = tuned[0].base.get_input_embeddings().weight
    assert (prompts[0][:, None] == rows[None]).all(-1).any(1).all()
    assert torch.equal(prompts[0], prompts[1]) and not torch.equal(prompts[0], prompts[2])


def test_text_inits():
    tokenizer = load_model("tiny").tokenizer
    assert PromptTuningConfig.from_text("abc", tokenizer).init == (97, 98, 99)
    assert PromptTuningConfig.from_text("abc", tokenizer, 5).init == (97, 98, 99, 97, 98)
    with pytest.raises(
        ValueError, match=r"init has 3 tokens and num_virtual_tokens is 2; .* use 3"
    ):
        PromptTuningConfig.from_text("abc", tokenizer, 2)
    with pytest.raises(ValueError, match="has no tokens"):
        PromptTuningConfig.from_text("", tokenizer, 2)
    with pytest.raises(TypeError, match="text must be a string"):
        PromptTuningConfig.from_text(["abc"], tokenizer)


@each_method
def test_a_tuple_has_the_same_loss_and_logits_as_named_results(config):
    tuned = adapt(build(), config)
    named = tuned(TOKENS, labels=TOKENS)
    loss, scores, *_ = tuned(TOKENS, labels=TOKENS, return_dict=False)
    assert loss == named.loss and torch.equal(scores, named.logits)


def test_a_model_without_attention_heads_can_have_a_prompt(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 32, "state_size": 4}
    base = MambaForCausalLM(MambaConfig(**sizes))
    tuned = adapt(copy.deepcopy(base), PromptTuningConfig(3))
    save(tuned, tmp_path)
    assert torch.equal(logits(load(base, tmp_path)), logits(tuned))


@each_row("n", [0, 2.5, True])
@each_row("kind", [PromptTuningConfig, PrefixTuningConfig])
def test_an_impossible_number_of_virtual_tokens_is_refused(kind, n):
    with pytest.raises(ValueError, match="num_virtual_tokens must be an integer of at least 1"):
        kind(n)


@each_row("init", ["TEXT", (), [-1], [True], None])
def test_an_impossible_init_is_refused(init):
    with pytest.raises(ValueError, match=r"init must be .* or token ids, got"):
        PromptTuningConfig(4, init)


@each_method
def test_all_but_the_virtual_tokens_is_frozen_and_the_interface_is_that_of_layers(config):
    model = adapt(build(), config, "law")
    assert adapt(model, config, "poetry", generator=seeded(5)) is model
    assert adapter_names(model) == ["law", "poetry"] and active_adapters(model) == ["law"]
    (name,) = trainable_parameters(model)
    assert name == "encoders.law.prompt_embeddings"
    outputs = {"law": logits(model)}
    set_adapter(model, "poetry")
    outputs["poetry"] = logits(model)
    assert list(trainable_parameters(model)) == ["encoders.poetry.prompt_embeddings"]
    with disable_adapters(model):
        outputs["none"] = logits(model)
        text = model.generate(TOKENS, max_new_tokens=3, do_sample=False)
    assert torch.equal(outputs["none"], logits(build()))
    assert torch.equal(text, build().generate(TOKENS, max_new_tokens=3, do_sample=False))
    assert len({tensor.sum().item() for tensor in outputs.values()}) == 3
    with pytest.raises(ValueError, match=f"only one adapter with {model.method} can be active"):
        set_adapter(model, ["law", "poetry"])
    with pytest.raises(NotImplementedError, match=r"can't be merged: virtual tokens are input"):
        merge_adapters(model)
    with pytest.raises(TypeError, match=r"take model\.base"):
        remove_adapters(model)
    assert torch.equal(logits(model), outputs["poetry"])


@each_method
def test_a_cache_filled_by_hand_gives_the_logits_of_one_pass(config):
    model = adapt(build(), config)
    mask = torch.ones_like(TOKENS)
    whole = logits(model)
    with torch.no_grad():
        first = model(TOKENS[:, :7], attention_mask=mask[:, :7])
        rest = model(TOKENS[:, 7:], attention_mask=mask, past_key_values=first.past_key_values)
    assert torch.allclose(torch.cat([first.logits, rest.logits], 1), whole, atol=1e-6)
    embedded = model.base.get_input_embeddings()(TOKENS)
    with torch.no_grad():
        assert torch.equal(model(inputs_embeds=embedded).logits, whole)


@each_method
def test_a_saved_adapter_loads_bit_for_bit_under_any_name(config, tmp_path):
    model = adapt(build(), config, "first", generator=seeded(3))
    save(model, tmp_path, "first")
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]
    assert list(load_file(tmp_path / WEIGHTS)) == ["prompt_embeddings"]
    other = load(build(), tmp_path, "second")
    assert torch.equal(logits(other), logits(model)) and adapter_names(other) == ["second"]
    assert load(other, tmp_path, "third") is other
    set_adapter(other, "third")
    assert torch.equal(logits(other), logits(model))
    with pytest.raises(ValueError, match="no adapter 'default'; its adapters are"):
        save_prompt(other, tmp_path / "x")
    with pytest.raises(TypeError, match="expected a PromptTunedModel or a PrefixTunedModel"):
        save_prompt(build(), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_files_of_other_methods_are_refused_by_name_and_change_nothing(tmp_path):
    for name, config in zip(("prompt", "prefix"), BOTH, strict=True):
        save(adapt(build(), config), tmp_path / name)
    save(adapt(build(), LoRAConfig(2)), tmp_path / "lora")
    model = build()
    with pytest.raises(ValueError, match="not implemented here: peft_type='PREFIX_TUNING'"):
        load_adapter(model, tmp_path / "prefix")
    with pytest.raises(ValueError, match="not implemented here: peft_type='LORA'"):
        load_prompt(model, tmp_path / "lora")
    assert all(p.requires_grad for p in model.parameters())
    tuned = load(model, tmp_path / "prompt")
    with pytest.raises(ValueError, match="is for prefix tuning; this model has prompt tuning"):
        load(tuned, tmp_path / "prefix", "other")
    with pytest.raises(TypeError, match="has an adapter for layers"):
        load(tuned, tmp_path / "lora", "other")
    edit_config(tmp_path / "prompt", peft_type="P_TUNING")
    with pytest.raises(ValueError, match="P-tuning v1, in which an LSTM or an MLP computes"):
        load(build(), tmp_path / "prompt")


@each_row(
    ("change", "says"),
    [
        ({"num_virtual_tokens": 5}, r"prompt_embeddings is \(4, 64\), expected \(5, 64\)"),
        ({"num_virtual_tokens": 0}, "num_virtual_tokens must be an integer of at least 1"),
        ({"token_dim": 32}, r"the file has {'token_dim': 32}, the model {'token_dim': 64}"),
        ({"num_transformer_submodules": 2}, "not implemented here: num_transformer_submodules=2"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"a_future_setting": 1}, "not implemented here: a_future_setting=1"),
        ({"task_type": "SEQ_CLS"}, "is for the task SEQ_CLS, expected CAUSAL_LM"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_and_changes_nothing(change, says, tmp_path):
    save(adapt(build(), PromptTuningConfig(4)), tmp_path)
    edit_config(tmp_path, **change)
    model = build()
    with pytest.raises(ValueError, match=says):
        load(model, tmp_path)
    assert all(p.requires_grad for p in model.parameters())


def test_a_file_with_more_tensors_is_refused(tmp_path):
    save(adapt(build(), PromptTuningConfig(4)), tmp_path)
    save_file({"prompt_embeddings": torch.ones(4, 64), "more": torch.ones(1)}, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match="must contain prompt_embeddings and nothing else"):
        load(build(), tmp_path)


@each_row("wrapper", [PromptTunedModel, PrefixTunedModel])
def test_other_models_are_refused(wrapper):
    sizes = {"d_model": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 16, "d_kv": 4}
    t5 = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    bert = BertForMaskedLM(
        BertConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            vocab_size=16,
        )
    )
    for model in (t5, bert, torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=f"wraps a decoder-only .*got {type(model).__name__}"):
            wrapper(model, wrapper.config_type(2))
        assert all(p.requires_grad for p in model.parameters())
    for model in (adapt(build(), LoRAConfig(2)), adapt(build(), PromptTuningConfig(2))):
        with pytest.raises(TypeError, match="has adapters already; merge or remove them first"):
            wrapper(model, wrapper.config_type(2))


@each_method
def test_wrong_arguments_are_refused_and_the_model_stays_as_it_was(config):
    model = build()
    with pytest.raises(TypeError, match=r"config must be one of .*PrefixTuningConfig; got 'LORA'"):
        adapt(model, "LORA")
    with pytest.raises(TypeError, match=r"load\(name\) returns two: model, tokenizer"):
        adapt(load_model("tiny"), config)
    with pytest.raises(ValueError, match=r"adapter name 'a\.b' is invalid"):
        adapt(model, config, "a.b")
    with pytest.raises(ValueError, match="adapter name 3 is invalid"):
        adapt(model, config, 3)
    assert all(p.requires_grad for p in model.parameters())
    tuned = adapt(model, config)
    with pytest.raises(ValueError, match="'default' already exists"):
        adapt(tuned, config)
    with pytest.raises(
        TypeError, match=r"takes a Pr.*, got LoRAConfig; one module has adapters of"
    ):
        adapt(tuned, LoRAConfig(2))
    with pytest.raises(ValueError, match=r"\(2, 12\) without .*, got \(2, 1, 12, 12\)"):
        logits(tuned, attention_mask=torch.ones(2, 1, 12, 12))
    with pytest.raises(ValueError, match="give input_ids"):
        tuned(attention_mask=torch.ones(1, 3))
    with pytest.raises(ValueError, match="give input_ids"):
        tuned(TOKENS[0])
    with pytest.raises(ValueError, match=r"\(2, 12\) without the virtual tokens, got \(2, 16\)"):
        tuned(TOKENS, attention_mask=torch.ones(2, 16))
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator on the CPU, got 3"):
        adapt(build(), config, generator=3)
    with pytest.raises(TypeError, match="has an adapter; inject into its base model"):
        inject(tuned, LoRAConfig(2), "second")
    with pytest.raises(ValueError, match="TunedModel has adapters; quantize its base model first"):
        quantize_model(tuned)
    with pytest.raises(ValueError, match="a static cache has no room"):
        tuned.generate(TOKENS, max_new_tokens=2, cache_implementation="static")


@each_row("kind", [PromptTuningConfig, PrefixTuningConfig])
def test_more_virtual_tokens_than_positions_are_refused(kind):
    model = gpt2(n_positions=16).eval()
    with pytest.raises(ValueError, match="16 virtual tokens and 1 of text need 17 positions, and "):
        adapt(model, kind(16))
    assert all(p.requires_grad for p in model.parameters())
    tuned = adapt(model, kind(4))
    assert logits(tuned, TOKENS[:, :12]).shape == (2, 12, 32)
    with pytest.raises(ValueError, match="4 virtual tokens and 13 of text need 17 positions"):
        logits(tuned, torch.ones(1, 13, dtype=torch.long))
    with pytest.raises(ValueError, match="4 virtual tokens and 13 of text need 17 positions"):
        tuned.generate(TOKENS[:, :10], max_new_tokens=9, do_sample=False, pad_token_id=0)
    assert not model._forward_pre_hooks, "the hook is removed after an error too"


def test_a_token_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="init has the token 300, and the model has tokens 0 to"):
        adapt(build(), PromptTuningConfig(2, init=[1, 300]))


@each_method
def test_a_16_bit_model_has_fp32_virtual_tokens(config, tmp_path):
    model = adapt(build().to(torch.bfloat16), config)
    (parameter,) = trainable_parameters(model).values()
    assert parameter.dtype == torch.float32 and logits(model).dtype == torch.bfloat16
    model(**BATCH).loss.backward()
    assert parameter.grad.abs().max() > 0
    save(model, tmp_path)
    assert load_file(tmp_path / WEIGHTS)["prompt_embeddings"].dtype == torch.float32


@each_row("config", [PromptTuningConfig(4), *BOTH])
def test_a_model_without_storage_can_be_counted_and_a_copy_is_independent(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=2))
        tuned = adapt(model, config)
    # 4 prompt vectors of 4096, or 4 keys and values of 4096 in two layers
    expected = 4 * 4096 * (4 if isinstance(config, PrefixTuningConfig) else 1)
    assert sum(p.numel() for p in trainable_parameters(tuned).values()) == expected
    first = adapt(build(), config)
    second = copy.deepcopy(first)
    with torch.no_grad():
        next(iter(trainable_parameters(second).values())).zero_()
    assert not torch.equal(logits(first), logits(second))


@pytest.mark.gpu
@each_method
def test_training_generation_and_files_work_on_a_gpu(config, tmp_path):
    model = adapt(build().to("cuda"), config)
    train(model, [BATCH], TrainConfig(steps=2, learning_rate=1e-2, progress=False))
    ids = TOKENS.to("cuda")
    mask = torch.ones_like(TOKENS).to("cuda")
    settings = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    text = model.generate(ids, **settings)
    save(model, tmp_path)
    assert torch.equal(load(build().to("cuda"), tmp_path).generate(ids, **settings), text)
