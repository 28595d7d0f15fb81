"""Several adapters in one batch: each row as from a model that has this adapter alone."""

import copy

import peft
import pytest
import torch
from peft import get_peft_model
from transformers import LlamaForCausalLM

from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.injection import inject, merge_adapters, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt, save
from course_pkg.adapters.prefixes import PrefixTuningConfig
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams
from tests.tables import each_row

TOKENIZER = load("tiny").tokenizer
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
CONFIGS = {
    "attention": LoRAConfig(rank=4, target_modules=["q_proj", "v_proj"]),
    "all": LoRAConfig(rank=2, alpha=8, use_rslora=True),
    "one": LoRAConfig(rank=1, target_modules=r"model\.layers\.1\.mlp\.down_proj"),
    "patterns": LoRAConfig(
        rank=2, rank_pattern={"q_proj": 3}, alpha_pattern={r"^model\.layers\.0.*": 50}
    ),
}


def adapted(config, seed=0, name="default"):
    model = load("tiny").model
    inject(model, config, name)
    randomize(model, seed)
    return model


def randomize(model, seed=0):
    """Random numbers in B, so that the adapter has an effect."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.data.normal_(generator=generator)


@pytest.fixture
def folders(tmp_path):
    for seed, (name, config) in enumerate(CONFIGS.items()):
        save_adapter(adapted(config, seed), tmp_path / name)
    return {name: tmp_path / name for name in CONFIGS}


def generated(model, prompt):
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 256, "eos_token_id": None}
    out = model.generate(ids, max_new_tokens=10, do_sample=False, **options)
    return out[0, len(prompt) :].tolist()


def expected(prompt, folder=None):
    model = load("tiny").model
    if folder is not None:
        load_adapter(model, folder)
    return generated(model, prompt)


def tokens(requests):
    return [request.completions[0].tokens for request in requests]


def test_each_row_has_its_own_adapter(folders):
    engine = Engine(*load("tiny"), blocks=60, adapters=folders)
    prompts = [[9, 8, 7]] * 10 + [[5]] * 5
    names = [*CONFIGS, None] * 3
    requests = engine.generate(prompts, GREEDY, adapter=names)
    wanted = [expected(p, folders.get(name)) for p, name in zip(prompts, names, strict=True)]
    assert tokens(requests) == wanted and len({tuple(row) for row in wanted[:5]}) == 5
    assert [request.adapter for request in requests] == names


def test_an_adapter_hits_only_its_own_blocks(folders):
    engine = Engine(*load("tiny"), blocks=60, block_size=4, adapters=folders)
    prompt = list(range(10))
    for _ in range(2):
        for name in ("all", "one", None):
            [request] = engine.generate([prompt], GREEDY, adapter=name)
            assert tokens([request]) == [expected(prompt, folders.get(name))]
    hits = [
        engine.generate([prompt], GREEDY, adapter=n)[0].hit_tokens for n in ("all", "attention")
    ]
    assert hits == [8, 0]


def test_a_model_with_an_active_adapter_can_be_given(folders):
    model = adapted(CONFIGS["all"], 1, "mine")
    engine = Engine(*load("tiny"), blocks=60, adapters={"new": model, "all": folders["all"]})
    new, same, base = tokens(engine.generate([[4, 5]] * 3, GREEDY, adapter=["new", "all", None]))
    assert new == same == expected([4, 5], folders["all"]) and base == expected([4, 5])


def saving(module):
    return LoRAConfig(2, target_modules=["q_proj"], modules_to_save=[module])


def test_the_given_model_stays_as_it_was(folders):
    decoder = Decoder.from_transformers(load("tiny").model)
    names = [name for name, _ in decoder.named_modules()]
    grads = [parameter.requires_grad for parameter in decoder.parameters()]
    engine = Engine(decoder, load("tiny").tokenizer, blocks=60, adapters=folders)
    assert [name for name, _ in decoder.named_modules()] == names
    assert [parameter.requires_grad for parameter in decoder.parameters()] == grads
    shared = engine.runner.decoder.layers[0].mlp.up_proj.layer.base.weight
    assert shared.data_ptr() == decoder.layers[0].mlp.up_proj.weight.data_ptr()
    half, tokenizer = load("tiny", dtype=torch.bfloat16)
    engine = Engine(half, tokenizer, blocks=60, adapters=folders)
    requests = engine.generate([[4, 5]] * 2, GREEDY, adapter=["all", None])
    assert [len(row) for row in tokens(requests)] == [10, 10]
    assert engine.runner.caches[0][0].dtype == torch.bfloat16


@each_row(
    ("config", "kind"),
    [
        (LoRAConfig(rank=2, bias="lora_only"), "has trained biases of the base"),  # rows share it
        (DoRAConfig(rank=2), "DoRA"),
        (BottleneckConfig(size=2), "a bottleneck adapter"),
        (LoRAConfig(rank=2, target_modules=["embed_tokens"]), "LoRA on embed_tokens, which is not"),
        (saving("norm"), r"LoRA with modules_to_save \['norm'\]"),
        (saving("lm_head"), r"LoRA with modules_to_save \['lm_head'\]"),
        (PromptTuningConfig(2), r"a trained prompt or prefix \(PROMPT_TUNING\)"),
        (PrefixTuningConfig(2), r"a trained prompt or prefix \(PREFIX_TUNING\)"),
    ],
)
def test_what_is_not_lora_on_linear_layers_is_refused(config, kind, tmp_path):
    model = adapt(load("tiny").model, config)
    save(model, tmp_path)
    for source in (model, tmp_path):
        message = kind if kind.startswith("has") else f"is {kind}.*: the engine takes LoRA"
        with pytest.raises(ValueError, match=f"'x' {message}"):
            Engine(*load("tiny"), blocks=4, adapters={"x": source})


def test_what_is_no_adapter_is_refused_and_a_peft_model_until_it_is_saved(tmp_path):
    plain = load("tiny").model
    with pytest.raises(ValueError, match="the model has no adapter"):
        Engine(*load("tiny"), blocks=4, adapters={"x": plain})
    with pytest.raises(FileNotFoundError, match="is not an adapter folder"):
        Engine(*load("tiny"), blocks=4, adapters={"x": tmp_path})
    with pytest.raises(ValueError, match="adapter name 'a b' is invalid"):
        Engine(*load("tiny"), blocks=4, adapters={"a b": adapted(CONFIGS["one"])})
    model = get_peft_model(load("tiny").model, peft.LoraConfig(r=2, target_modules="all-linear"))
    randomize(model)
    with pytest.raises(ValueError, match="'x' is a PeftModel of PEFT: save it with save_pretrain"):
        Engine(*load("tiny"), blocks=4, adapters={"x": model})
    model.save_pretrained(tmp_path)
    engine = Engine(*load("tiny"), blocks=9, adapters={"x": tmp_path})
    merged = Engine(model.merge_and_unload(), TOKENIZER, blocks=9)
    ours = tokens(engine.generate([[9, 8, 7]], GREEDY, adapter="x"))
    assert ours == tokens(merged.generate([[9, 8, 7]], GREEDY)) != [expected([9, 8, 7])]


def untied():
    config = load("tiny").model.config
    torch.manual_seed(0)
    settings = config.to_dict() | {"tie_word_embeddings": False}
    return LlamaForCausalLM(type(config)(**settings)).eval()


@each_row(("targets", "tied"), [(["lm_head"], False), (r"lm_head|.*q_proj", True)])
def test_an_adapter_of_lm_head_is_refused_until_it_is_merged(targets, tied, tmp_path):
    base = load("tiny").model if tied else untied()
    model = copy.deepcopy(base)
    theirs = copy.deepcopy(base)
    inject(model, LoRAConfig(rank=2, target_modules=targets))
    save_adapter(model, tmp_path / "ours")
    theirs = get_peft_model(theirs, peft.LoraConfig(r=2, target_modules=targets))
    theirs.save_pretrained(tmp_path / "theirs")
    advice = "train it without lm_head in target_modules, or merge it into a model"
    for source in (model, tmp_path / "ours", tmp_path / "theirs"):
        with pytest.raises(ValueError, match=f"'x' changes lm_head, .*: {advice}") as raised:
            Engine(base, TOKENIZER, blocks=4, adapters={"x": source})
        assert "with config.tie_word_embeddings = False" in str(raised.value)
    randomize(model)
    wanted = generated(model, [9, 8, 7])
    merge_adapters(model)
    remove_adapters(model)
    model.config.tie_word_embeddings = False
    engine = Engine(model, TOKENIZER, blocks=4)
    assert tokens(engine.generate([[9, 8, 7]], GREEDY)) == [wanted]
