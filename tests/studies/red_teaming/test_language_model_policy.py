"""A language model as a policy: consistent with itself, and p_0 without its adapter."""

import pytest
import torch

from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.lm.load import load
from course_pkg.studies.red_teaming.language_model_policy import LanguageModelPolicy

PROMPT = [5, 6, 7]
ENDS = range(40, 90)


@pytest.fixture(scope="module")
def policy():
    model, _ = load("tiny")
    config = LoRAConfig(rank=2, target_modules=["q_proj", "v_proj"])
    inject(model, config, generator=torch.Generator().manual_seed(0))
    return LanguageModelPolicy(model, PROMPT, ENDS, 6)


def disturb(policy, scale):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if parameter.requires_grad and ".lora_B" in name:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))


def test_the_cached_draws_have_the_distribution_of_a_whole_pass(policy):
    disturb(policy, 0.0)
    cases = policy.sample(1500, torch.Generator().manual_seed(2))
    log_probs, _ = policy.next_log_probs(cases)
    expected = log_probs[0, 0].exp()  # the first token has the same state in all cases
    found = torch.bincount(cases.tokens[:, 0], minlength=len(expected)) / 1500
    assert (found - expected).abs().sum() < 0.5  # about sqrt(2/π · v / n)
    assert cases.tokens.shape == cases.mask.shape


def test_a_case_ends_with_its_first_end_token(policy):
    cases = policy.sample(50, torch.Generator().manual_seed(3))
    for tokens, mask in zip(cases.tokens.tolist(), cases.mask.tolist(), strict=True):
        length = int(sum(mask))
        assert mask == [1.0] * length + [0.0] * (len(mask) - length)
        assert not set(tokens[: length - 1]) & set(ENDS)
        assert length == policy.limit or tokens[length - 1] in ENDS


def test_a_new_adapter_has_no_divergence_and_a_disturbed_one_has(policy):
    disturb(policy, 0.0)
    cases = policy.sample(8, torch.Generator().manual_seed(4))
    chosen, values, kl = policy.evaluate(cases)
    assert kl.abs().max() < 1e-5
    assert torch.equal(values, torch.zeros_like(values))
    disturb(policy, 3.0)
    moved, _, kl = policy.evaluate(cases)
    assert kl.max() > 1e-3
    assert not torch.allclose(moved, chosen)
    disturb(policy, 0.0)


def test_a_policy_needs_a_prompt_and_ends(policy):
    with pytest.raises(ValueError, match="both need at least one"):
        LanguageModelPolicy(policy.model, [], ENDS, 4)
    with pytest.raises(ValueError, match="limit"):
        LanguageModelPolicy(policy.model, PROMPT, ENDS, 0)
