"""The training loop: draw cases, get replies, judge them, take a gradient step.

The loop is what reinforcement learning of a red language model does; only the policy is small.
Chapter: evaluation/red-teaming.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from course_pkg.common.arguments import require_integer
from course_pkg.studies.red_teaming.objective import check_alpha, next_token_kl, red_team_loss
from course_pkg.studies.red_teaming.slot_policy import SlotPolicy

Judge = Callable[[Tensor, torch.Generator], Tensor]  # cases (n, T) → r of a reply to each, (n,)


@dataclass(frozen=True)
class SlotRun:
    """A trained policy, and per step the batch's mean reward and mean KL divergence in nats."""

    policy: SlotPolicy
    rewards: tuple[float, ...]
    divergences: tuple[float, ...]


def train_slot_policy(
    initial: SlotPolicy,
    judge: Judge,
    alpha: float,
    generator: torch.Generator,
    *,
    steps: int = 300,
    batch: int = 64,
    rate: float = 0.05,
) -> SlotRun:
    """Train a copy of `initial` with advantage actor-critic and a KL penalty of weight alpha.

    judge: asks the target once per case and returns r, in [0, 1]. The optimizer is Adam.
    Raises ValueError for alpha outside [0, 1], or for steps or batch below 1.
    Source: Perez et al. 2022, section 2.2.

    >>> def second_is_1(cases, generator):
    ...     return (cases[:, 1] == 1).float()
    >>> start = SlotPolicy([2, 2])
    >>> seed = torch.Generator().manual_seed(0)
    >>> run = train_slot_policy(start, second_is_1, 0.0, seed, steps=100, batch=16)
    >>> run.rewards[0] < 0.9 < run.rewards[-1], run.policy is start
    (True, False)
    """
    check_alpha(alpha)
    require_integer(steps, "steps")
    require_integer(batch, "batch")
    policy = copy.deepcopy(initial)
    optimizer = torch.optim.Adam(policy.parameters(), lr=rate)
    rewards_of_steps = []
    divergences = []
    for _ in range(steps):
        cases = policy.sample(batch, generator)
        rewards = judge(cases, generator)
        log_probs = policy.next_log_probs(cases)
        with torch.no_grad():
            initial_log_probs = initial.next_log_probs(cases)
        kl = torch.stack(list(map(next_token_kl, log_probs, initial_log_probs)), 1)
        chosen = policy.chosen(cases, log_probs)
        mask = torch.ones_like(chosen)
        loss = red_team_loss(chosen, policy.values(cases), kl, rewards, mask, alpha)
        optimizer.zero_grad()
        loss.total.mean().backward()
        optimizer.step()
        rewards_of_steps.append(rewards.mean().item())
        divergences.append(kl.sum(1).mean().item())
    return SlotRun(policy, tuple(rewards_of_steps), tuple(divergences))
