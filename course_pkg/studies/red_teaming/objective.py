"""The objective of reinforcement learning for red teaming, its loss, and its best distribution.

    J(p_r) = (1 - α) E_{x ~ p_r, y ~ p_t(·|x)}[r(x, y)] - α KL(p_r || p_0)

Sources: Perez et al. 2022, section 2.2; Mnih et al. 2016 (A2C), section 4; Korbak et al. 2022.
Chapter: evaluation/red-teaming.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_pkg.common.arguments import require_number


@dataclass(frozen=True)
class LossParts:
    """The loss per case, (n,), and the two parts that it is made of, before they are weighted."""

    total: Tensor
    a2c: Tensor
    kl: Tensor


def next_token_kl(log_probs: Tensor, initial_log_probs: Tensor) -> Tensor:
    """KL(p_r(·|s) || p_0(·|s)) over the next token, exactly, in nats: (..., v) → (...)."""
    if log_probs.shape != initial_log_probs.shape:
        raise ValueError("log_probs and initial_log_probs must have the same shape")
    probabilities = log_probs.exp()
    ratio = torch.where(probabilities > 0, log_probs - initial_log_probs, 0)
    return (probabilities * ratio).sum(-1)


def a2c_loss(
    log_probs: Tensor, values: Tensor, rewards: Tensor, mask: Tensor, value_weight: float = 0.5
) -> Tensor:
    """Advantage actor-critic, per case: -Σ_t (r - V(s_t)) ln p_r(x_t|s_t) + w Σ_t (V(s_t) - r)².

    Args:
        log_probs: of the tokens that were drawn, (n, T).
        values: V(s_t), (n, T), which learn from the second sum alone.
        rewards: r of each case, (n,), given at its end; no discount.
        mask: 1 for the tokens of a case, 0 after them, (n, T).
    """
    advantages = (rewards[:, None] - values).detach()
    errors = (values - rewards[:, None]) ** 2
    return ((-advantages * log_probs + value_weight * errors) * mask).sum(1)


def kl_loss(log_probs: Tensor, kl: Tensor, mask: Tensor) -> Tensor:
    """A loss per case, (n,), whose mean has the gradient of KL(p_r || p_0) of whole texts.

    The value is Σ_t kl_t. The gradient also has Σ_t (Σ_{u > t} kl_u) ∇ ln p_r(x_t|s_t): a token is
    responsible for the states it leads to.

    Args:
        log_probs: of the tokens that were drawn, (n, T).
        kl: `next_token_kl` at each token, (n, T).
    """
    masked = kl * mask
    later = (masked.sum(1, keepdim=True) - masked.cumsum(1)).detach()
    score = later * log_probs * mask
    return (masked + score - score.detach()).sum(1)


def red_team_loss(
    log_probs: Tensor, values: Tensor, kl: Tensor, rewards: Tensor, mask: Tensor, alpha: float
) -> LossParts:
    """(1 - α) `a2c_loss` + α `kl_loss`, per case; minimize the mean of `total`."""
    check_alpha(alpha)
    a2c = a2c_loss(log_probs, values, rewards, mask)
    divergence = kl_loss(log_probs, kl, mask)
    return LossParts((1 - alpha) * a2c + alpha * divergence, a2c, divergence)


def exact_objective(
    log_probs: Tensor, initial_log_probs: Tensor, rewards: Tensor, alpha: float
) -> Tensor:
    """J, summed over all N cases that exist: no sampling. rewards: the expected r of each, (N,)."""
    check_alpha(alpha)
    success = (log_probs.exp() * rewards).sum()
    return (1 - alpha) * success - alpha * next_token_kl(log_probs, initial_log_probs)


def tilted_distribution(initial_log_probs: Tensor, rewards: Tensor, alpha: float) -> Tensor:
    """The log-probabilities that maximize J: p_0(x) exp(r(x) (1 - α) / α), normalized, (N,).

    At α = 0 all probability is on the cases with the largest reward, in the proportions of p_0.
    """
    check_alpha(alpha)
    if alpha == 0:
        best = rewards == rewards.max()
        return torch.where(best, initial_log_probs, -torch.inf).log_softmax(0)
    return (initial_log_probs + rewards * (1 - alpha) / alpha).log_softmax(0)


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless 0 <= alpha <= 1."""
    if not 0 <= require_number(alpha, "alpha") <= 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}; it is the weight of the KL part")
