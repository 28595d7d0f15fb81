"""The loss of red teaming by reinforcement learning: its gradient, compared with exact sums."""

import math

import pytest
import torch

from course_pkg.studies.red_teaming.objective import (
    SlotPolicy,
    a2c_loss,
    exact_objective,
    fit_slot_policy,
    kl_loss,
    next_token_kl,
    red_team_loss,
    tilted_distribution,
    train_slot_policy,
)
from tests.refusals import require_refusals

SIZES = (2, 3, 4)


def random_policy(seed, scale=1.0):
    """A policy in float64 with random distributions and values."""
    generator = torch.Generator().manual_seed(seed)
    policy = SlotPolicy(SIZES).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(scale * drawn)
    return policy


def random_rewards(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(math.prod(SIZES), generator=generator, dtype=torch.float64)


def losses(policy, initial, rewards, alpha):
    """The loss of every case that exists, and the policy's ln p of each."""
    cases = policy.all_cases()
    log_probs = policy.next_log_probs(cases)
    with torch.no_grad():
        initial_log_probs = initial.next_log_probs(cases)
    kl = torch.stack(list(map(next_token_kl, log_probs, initial_log_probs)), 1)
    chosen = policy.chosen(cases, log_probs)
    parts = red_team_loss(chosen, policy.values(cases), kl, rewards, torch.ones_like(chosen), alpha)
    return parts, policy.log_prob(cases)


def gradients(policy, scalar):
    tables = list(policy.logits)
    return torch.cat([g.flatten() for g in torch.autograd.grad(scalar, tables)])


def test_the_expected_gradient_is_that_of_the_objective_whatever_the_values():
    for alpha in (0.0, 0.3, 0.9, 1.0):
        initial = random_policy(1)
        rewards = random_rewards(2)
        for seed in (3, 4):  # other values, too
            policy = random_policy(seed)
            parts, log_probs = losses(policy, initial, rewards, alpha)
            weights = log_probs.exp().detach()
            estimated = gradients(policy, (weights * parts.total).sum())
            initial_log_probs = initial.log_prob(initial.all_cases()).detach()
            exact = -exact_objective(
                policy.log_prob(policy.all_cases()), initial_log_probs, rewards, alpha
            )
            assert torch.allclose(estimated, gradients(policy, exact), atol=1e-12)


def test_the_critic_learns_from_its_own_error_alone():
    policy = random_policy(13)
    initial = random_policy(14)
    parts, log_probs = losses(policy, initial, random_rewards(15), 0.5)
    tables = list(policy.value_tables)
    found = torch.autograd.grad((log_probs.exp().detach() * parts.total).sum(), tables)
    weights = log_probs.exp().detach()
    mean_reward = (weights * random_rewards(15)).sum()
    # At the first slot: (1 - α) · 0.5 · 2 (V - E r).
    expected = 0.5 * (policy.value_tables[0] - mean_reward)
    assert torch.allclose(found[0], expected, atol=1e-12)


def test_a_case_by_hand_and_tokens_after_the_end_count_for_nothing():
    # Two tokens; advantage 1 - 0.25: 0.75 · (1 + 2) + 0.5 · 2 · 0.5625; KL 0.1 + 0.2.
    log_probs = torch.tensor([[-1.0, -2.0]])
    values = torch.full((1, 2), 0.25)
    one = torch.ones(1, 2)
    assert a2c_loss(log_probs, values, torch.ones(1), one).item() == pytest.approx(2.8125)
    kl = torch.tensor([[0.1, 0.2]])
    assert kl_loss(log_probs, kl, one).item() == pytest.approx(0.3)
    log_probs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 0.0]])
    values = torch.full((1, 2), 0.2)
    kl = torch.full((1, 2), 0.3)
    parts = red_team_loss(log_probs, values, kl, torch.ones(1), mask, 0.5)
    short = red_team_loss(
        log_probs[:, :1], values[:, :1], kl[:, :1], torch.ones(1), mask[:, :1], 0.5
    )
    assert parts.total.item() == pytest.approx(short.total.item())
    parts.total.sum().backward()
    assert log_probs.grad[0, 1] == 0


def test_no_distribution_beats_the_tilted_one():
    for alpha in (0.05, 0.3, 0.8):
        initial = random_policy(16).log_prob(SlotPolicy(SIZES).all_cases()).detach()
        rewards = random_rewards(17)
        best = tilted_distribution(initial, rewards, alpha)
        top = exact_objective(best, initial, rewards, alpha)
        # J* = α ln E_{p_0}[exp(r (1 - α) / α)], by putting the distribution into J.
        closed = alpha * torch.logsumexp(initial + rewards * (1 - alpha) / alpha, 0)
        assert top.item() == pytest.approx(closed.item(), rel=1e-9)
        generator = torch.Generator().manual_seed(18)
        for _ in range(50):
            noise = 0.3 * torch.randn(len(best), generator=generator, dtype=torch.float64)
            assert exact_objective((best + noise).log_softmax(0), initial, rewards, alpha) < top


def test_the_tilted_distribution_has_the_right_ends_and_a_sure_one_its_divergence():
    initial = random_policy(19).log_prob(SlotPolicy(SIZES).all_cases()).detach()
    rewards = random_rewards(20)
    assert torch.allclose(tilted_distribution(initial, rewards, 1.0), initial)
    assert tilted_distribution(initial, rewards, 0.0).exp()[rewards.argmax()] == 1
    near = tilted_distribution(initial, rewards, 1e-4)
    assert torch.allclose(near.exp(), tilted_distribution(initial, rewards, 0.0).exp(), atol=1e-6)
    sure = torch.tensor([0.0, -torch.inf])
    assert next_token_kl(sure, torch.tensor([0.25, 0.75]).log()).item() == pytest.approx(
        math.log(4)
    )


def test_training_reaches_the_tilted_distribution():
    rates = torch.tensor([[0.1, 0.8], [0.9, 0.2]])

    def judge(cases, generator):
        chances = rates[cases[:, 0], cases[:, 1]]
        return torch.bernoulli(chances, generator=generator)

    initial = SlotPolicy([2, 2])
    cases = initial.all_cases()
    rewards = rates.flatten()
    run = train_slot_policy(initial, judge, 0.4, torch.Generator().manual_seed(0), steps=250)
    best = tilted_distribution(initial.log_prob(cases).detach(), rewards, 0.4).exp()
    assert (run.policy.log_prob(cases).exp() - best).abs().sum() < 0.1


def test_the_supervised_policy_is_the_relative_frequency_and_cases_are_numbered_as_listed():
    generator = torch.Generator().manual_seed(21)
    cases = random_policy(22).sample(2000, generator)
    policy = fit_slot_policy(SIZES, cases, pseudo_count=1e-6)
    first = policy.logits[0].softmax(1)[0]
    counts = torch.bincount(cases[:, 0], minlength=SIZES[0])
    assert torch.allclose(first, counts / 2000, atol=1e-6)
    # Maximum likelihood: a nudge in any direction makes the cases less likely.
    best = policy.log_prob(cases).mean()
    with torch.no_grad():
        policy.logits[1].add_(0.1 * torch.randn(policy.logits[1].shape, generator=generator))
    assert policy.log_prob(cases).mean() < best
    policy = SlotPolicy(SIZES)
    assert torch.equal(policy.index_of(policy.all_cases()), torch.arange(math.prod(SIZES)))


def test_bad_input_is_one_clear_error():
    def loss(alpha):
        one = torch.ones(1, 1)
        return red_team_loss(one, one, one, torch.ones(1), one, alpha)

    require_refusals(
        (lambda: loss(-0.1), "alpha must be in"),
        (lambda: loss(1.1), "alpha must be in"),
        (lambda: loss(math.nan), "alpha must be in"),
        (lambda: next_token_kl(torch.zeros(1, 2), torch.zeros(1, 3)), "same shape"),
        (lambda: SlotPolicy([3]), "at least two slots"),
        (lambda: SlotPolicy([3, 1]), "slot's size"),
        (lambda: fit_slot_policy(SIZES, torch.zeros(4, 2, dtype=torch.int64)), r"give \(n, 3\)"),
    )
