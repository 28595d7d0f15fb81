"""The modules that a target selects, and the error messages."""

import random

import pytest
import torch
from torch import nn
from transformers import MambaConfig, MambaForCausalLM

from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.targets import find_targets, matches, shortest_targets
from tests.adapters.builders import build
from tests.refusals import require_refusals
from tests.tables import each_row


@pytest.fixture
def model():
    return build()


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


def test_all_linear_is_every_linear_layer_except_the_head(model):
    expected = [
        f"model.layers.{layer}.{part}.{name}"
        for layer in range(2)
        for part, names in (("self_attn", ATTENTION), ("mlp", MLP))
        for name in names
    ]
    assert find_targets(model, "all-linear") == find_targets(model, "ALL-Linear") == expected


def test_an_ending_starts_after_a_dot():
    assert not matches("layers.0.xq_proj", ["q_proj"])
    assert not matches("layers.0.q_proj.base", ["q_proj"])
    assert not matches("a.q_proj", "q_proj")


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj"], r".*\.q_proj", ["lm_head"]])
def test_adapted_modules_are_found_under_the_same_names(model, targets):
    before = find_targets(model, targets)
    inject(model, LoRAConfig(rank=1, target_modules=["q_proj", "up_proj", "lm_head"]))
    assert find_targets(model, targets) == before


def test_the_error_for_an_unknown_target_suggests_names(model):
    require_refusals(
        (model, ["q_pro"], r"'q_pro' matches no module of LlamaForCausalLM; did you mean 'q_proj'"),
        (model, ["q_proj", "query"], r"'query' matches no module"),
        (model, ["qproj"], r"linear modules end in: q_proj, k_proj, v_proj, o_proj, gate_proj"),
        (model, "q_proj", r"a string is a regex for the whole name, so write \['q_proj'\]"),
        (model, r".*\.query", "matches no module"),
        (model, "(", r"'\(' is not a regex"),
        of=find_targets,
    )


def test_the_error_for_a_target_that_is_not_linear_names_its_class(model):
    require_refusals(
        (model, ["mlp"], "type LlamaMLP; .* it contains gate_proj, up_proj, down_proj; name those"),
        (model, ["embed_tokens"], "embed_tokens' is of type Embedding; LoRA wraps an nn.Linear"),
        (model, ["norm"], "'model.norm' is of type LlamaRMSNorm"),
        (model, r".*proj|.*norm", "LlamaRMSNorm"),
        of=find_targets,
        errors=TypeError,
    )


@each_row("targets", ["all-linear", ["dt_proj"], ["out_proj"]])
def test_a_layer_whose_weight_mamba_reads_is_refused(targets):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 32, "state_size": 4}
    mamba = MambaForCausalLM(MambaConfig(**sizes))
    with pytest.raises(TypeError, match=r"_proj' can't .* MambaMixer reads this layer's weight"):
        inject(mamba, LoRAConfig(2, target_modules=targets))
    assert inject(mamba, LoRAConfig(2, target_modules=["in_proj"]))


def test_a_layer_that_attention_reads_but_never_calls_is_refused():
    with pytest.raises(TypeError, match=r"nn\.MultiheadAttention reads this layer's weight"):
        find_targets(nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2)}), ["out_proj"])


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(ValueError, match=r"has no nn\.Linear"):
        find_targets(nn.Sequential(nn.ReLU()), "all-linear")


def test_a_failed_injection_does_not_change_the_model(model):
    names = [name for name, _ in model.named_modules()]
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    state = torch.get_rng_state()
    with pytest.raises(TypeError):
        inject(model, LoRAConfig(target_modules=["q_proj", "mlp"]))
    with pytest.raises(ValueError, match="is invalid"):
        inject(model, LoRAConfig(), "a.b")
    assert [name for name, _ in model.named_modules()] == names
    assert [name for name, p in model.named_parameters() if p.requires_grad] == trainable
    assert torch.equal(torch.get_rng_state(), state)


@each_row("seed", range(30))
def test_the_endings_are_exact_and_the_fewest(seed):
    """Against all sets of endings, on random trees of names."""
    choose = random.Random(seed)
    names = sorted({".".join(choose.choices("abc", k=choose.randint(1, 3))) for _ in range(8)})
    chosen = [name for name in names if choose.random() < 0.5] or names[:1]
    others = [name for name in names if name not in chosen]
    found = shortest_targets(chosen, others)
    assert [name for name in names if matches(name, found)] == chosen
    if isinstance(found, list):
        endings = {name.split(".", k)[-1] for name in chosen for k in range(3)}
        exact = [e for e in endings if not any(matches(name, [e]) for name in others)]
        # Removing any ending, or replacing two by one, leaves a name out.
        for one in found:
            assert not all(matches(n, [e for e in found if e != one]) for n in chosen)
            for other in set(found) - {one}:
                rest = [e for e in found if e not in (one, other)]
                assert not any(all(matches(n, [*rest, e]) for n in chosen) for e in exact)
