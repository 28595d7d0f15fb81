"""The objective of reinforcement learning for red teaming, its loss, and its best distribution.

    J(p_r) = (1 - α) E_{x ~ p_r, y ~ p_t(·|x)}[r(x, y)] - α KL(p_r || p_0)

p_0 is the red model at the start, and α in [0, 1] weighs the two parts. One case x has T tokens,
and s_t is what stands before token t. `red_team_loss` is (1 - α) × the loss of advantage
actor-critic + α × the loss of the KL divergence, per case; its gradient, averaged over cases drawn
from p_r, is that of -J without a bias.

The divergence of whole texts is a sum over tokens, KL(p_r || p_0) = E Σ_t kl_t with
kl_t = KL(p_r(·|s_t) || p_0(·|s_t)). Its gradient has two parts: that of each kl_t, and that of
the probability of reaching s_t. `kl_loss` has both.
Sources: Perez et al. 2022, "Red Teaming Language Models with Language Models", section 2.2 (which
doesn't say whether it has the second part); Mnih et al. 2016, "Asynchronous Methods for Deep
Reinforcement Learning". Chapter: evaluation/red-teaming.
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
    """KL(p_r(·|s) || p_0(·|s)) over the next token, exactly, in nats: (..., v) → (...).

    log_probs, initial_log_probs: normalized, (..., v). A token of probability 0 adds 0.
    Raises ValueError if the shapes differ.

    >>> half, sure = torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 0.0]).log()
    >>> round(next_token_kl(sure, half).item(), 4)
    0.6931
    """
    if log_probs.shape != initial_log_probs.shape:
        raise ValueError(
            f"log_probs {tuple(log_probs.shape)} and initial_log_probs "
            f"{tuple(initial_log_probs.shape)} must have the same shape"
        )
    probabilities = log_probs.exp()
    ratio = torch.where(probabilities > 0, log_probs - initial_log_probs, 0)
    return (probabilities * ratio).sum(-1)


def a2c_loss(
    log_probs: Tensor, values: Tensor, rewards: Tensor, mask: Tensor, value_weight: float = 0.5
) -> Tensor:
    """Advantage actor-critic, per case: -Σ_t (r - V(s_t)) ln p_r(x_t|s_t) + w Σ_t (V(s_t) - r)².

    log_probs: of the tokens that were drawn, (n, T). values: V(s_t), (n, T), which learn from the
    second sum alone. rewards: r of each case, (n,), given at its end; no discount. mask: 1 for the
    tokens of a case, 0 after them, (n, T). The reward minus the value is the advantage.
    Source: Mnih et al. 2016, section 4, for episodes with one reward.

    >>> one = torch.ones(1, 1)
    >>> a2c_loss(-2 * one, 0.5 * one, torch.ones(1), one)
    tensor([1.1250])
    """
    advantages = (rewards[:, None] - values).detach()
    errors = (values - rewards[:, None]) ** 2
    return ((-advantages * log_probs + value_weight * errors) * mask).sum(1)


def kl_loss(log_probs: Tensor, kl: Tensor, mask: Tensor) -> Tensor:
    """A loss per case, (n,), whose mean has the gradient of KL(p_r || p_0) of whole texts.

    log_probs: of the tokens that were drawn, (n, T). kl: `next_token_kl` at each token, (n, T).
    mask: as for `a2c_loss`. The value is Σ_t kl_t. The gradient also has
    Σ_t (Σ_{u > t} kl_u) ∇ ln p_r(x_t|s_t): a token is responsible for the states it leads to.

    >>> kl_loss(torch.zeros(1, 2), torch.tensor([[0.1, 0.2]]), torch.ones(1, 2))
    tensor([0.3000])
    """
    masked = kl * mask
    later = (masked.sum(1, keepdim=True) - masked.cumsum(1)).detach()
    score = later * log_probs * mask
    return (masked + score - score.detach()).sum(1)


def red_team_loss(
    log_probs: Tensor, values: Tensor, kl: Tensor, rewards: Tensor, mask: Tensor, alpha: float
) -> LossParts:
    """(1 - α) `a2c_loss` + α `kl_loss`, per case; minimize the mean of `total`.

    Shapes as there. alpha: in [0, 1]; 1 keeps the initial policy. Raises ValueError outside.
    Source: Perez et al. 2022, section 2.2.

    >>> one = torch.ones(1, 1)
    >>> red_team_loss(-2 * one, 0 * one, 0.5 * one, torch.ones(1), one, 0.2).total
    tensor([2.1000])
    """
    check_alpha(alpha)
    a2c = a2c_loss(log_probs, values, rewards, mask)
    divergence = kl_loss(log_probs, kl, mask)
    return LossParts((1 - alpha) * a2c + alpha * divergence, a2c, divergence)


def exact_objective(
    log_probs: Tensor, initial_log_probs: Tensor, rewards: Tensor, alpha: float
) -> Tensor:
    """J, summed over all cases that exist: no sampling.

    log_probs, initial_log_probs: of all N cases, (N,). rewards: the expected r of each, (N,).

    >>> half = torch.tensor([0.5, 0.5]).log()
    >>> round(exact_objective(half, half, torch.tensor([0.0, 1.0]), 0.5).item(), 4)
    0.25
    """
    check_alpha(alpha)
    success = (log_probs.exp() * rewards).sum()
    return (1 - alpha) * success - alpha * next_token_kl(log_probs, initial_log_probs)


def tilted_distribution(initial_log_probs: Tensor, rewards: Tensor, alpha: float) -> Tensor:
    """The log-probabilities that maximize J: p_0(x) exp(r(x) (1 - α) / α), normalized, (N,).

    Shapes as for `exact_objective`. At α = 0 there is no KL penalty, and the limit puts all
    probability on the cases with the largest reward, in the proportions of p_0. Raises ValueError
    for alpha outside [0, 1].
    Source: Korbak et al. 2022, "RL with KL penalties is better viewed as Bayesian inference".

    >>> half = torch.tensor([0.5, 0.5]).log()
    >>> tilted_distribution(half, torch.tensor([0.0, 1.0]), 0.5).exp().round(decimals=3).tolist()
    [0.26899999380111694, 0.7310000061988831]
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
