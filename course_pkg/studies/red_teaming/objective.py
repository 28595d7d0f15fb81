"""The objective of reinforcement learning for red teaming, and a policy small enough to sum it up::

    J(p_r) = (1 - α) E_{x ~ p_r, y ~ p_t(·|x)}[r(x, y)] - α KL(p_r || p_0)

Sources: Perez et al. 2022, section 2.2; Mnih et al. 2016 (A2C), section 4; Korbak et al. 2022.
"""

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_pkg.common.arguments import require_between, require_integer, require_number


@dataclass(frozen=True)
class LossParts:
    """The loss per case, (n,), and the two parts that it is made of, before they are weighted."""

    total: Tensor
    a2c: Tensor
    kl: Tensor


def next_token_kl(log_probs: Tensor, initial_log_probs: Tensor) -> Tensor:
    """``KL(p_r(·|s) || p_0(·|s))`` over the next token, exactly, in nats: (..., v) → (...)."""
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
    """A loss per case, (n,), whose mean has the gradient of ``KL(p_r || p_0)`` of whole texts.

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


class SlotPolicy(nn.Module):
    """Next-slot distributions and values, all as tables; uniform and 0 at the start."""

    def __init__(self, sizes: Sequence[int]):
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"sizes={list(sizes)}: a case needs at least two slots")
        for size in sizes:
            require_integer(size, "a slot's size", 2)
        self.sizes = tuple(sizes)
        states = (1, *sizes[:-1])  # before slot t: which choice slot t - 1 has
        tables = [torch.zeros(n, v) for n, v in zip(states, sizes, strict=True)]
        self.logits = nn.ParameterList(tables)
        self.value_tables = nn.ParameterList([torch.zeros(n) for n in states])

    def all_cases(self) -> Tensor:
        """Every case, as its choices: (N, T), the last slot changing fastest."""
        return torch.tensor(list(itertools.product(*map(range, self.sizes))))

    def index_of(self, cases: Tensor) -> Tensor:
        """The rows of cases (n, T) in `all_cases`: (n,)."""
        index = torch.zeros(len(cases), dtype=torch.int64)
        for slot, size in enumerate(self.sizes):
            index = index * size + cases[:, slot]
        return index

    def states(self, cases: Tensor) -> list[Tensor]:
        """For each slot, the row of its table that each case is in: T tensors, (n,)."""
        return [torch.zeros(len(cases), dtype=torch.int64), *cases.T[:-1]]

    def next_log_probs(self, cases: Tensor) -> list[Tensor]:
        """Per slot, ``ln p(·|s_t)`` of its choices at the cases' states: T tensors, (n, v_t)."""
        pairs = zip(self.logits, self.states(cases), strict=True)
        return [table.log_softmax(1)[state] for table, state in pairs]

    def chosen(self, cases: Tensor, log_probs: Sequence[Tensor]) -> Tensor:
        """Of `next_log_probs`, those of the choices that the cases have: (n, T)."""
        columns = [
            table.gather(1, cases[:, slot, None]).squeeze(1) for slot, table in enumerate(log_probs)
        ]
        return torch.stack(columns, 1)

    def log_prob(self, cases: Tensor) -> Tensor:
        """ln p_r(x) of each case: (n, T) → (n,)."""
        return self.chosen(cases, self.next_log_probs(cases)).sum(1)

    def values(self, cases: Tensor) -> Tensor:
        """V(s_t), what the critic expects of r at each slot: (n, T) → (n, T)."""
        pairs = zip(self.value_tables, self.states(cases), strict=True)
        return torch.stack([table[state] for table, state in pairs], 1)

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw cases from p_r: (count, T)."""
        require_integer(count, "count")
        drawn: list[Tensor] = []
        state = torch.zeros(count, dtype=torch.int64)
        for table in self.logits:
            probabilities = table.softmax(1)[state]
            state = torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
            drawn.append(state)
        return torch.stack(drawn, 1)


def fit_slot_policy(sizes: Sequence[int], cases: Tensor, pseudo_count: float = 1.0) -> SlotPolicy:
    """The policy that makes the given cases, (n, T), most likely: supervised, in closed form."""
    require_between(pseudo_count, "pseudo_count", 0, math.inf)
    policy = SlotPolicy(sizes)
    if cases.ndim != 2 or cases.shape[1] != len(policy.sizes):
        raise ValueError(f"cases has shape {tuple(cases.shape)}; give (n, {len(policy.sizes)})")
    with torch.no_grad():
        for slot, state in enumerate(policy.states(cases)):
            table = torch.full_like(policy.logits[slot], float(pseudo_count))
            table.index_put_((state, cases[:, slot]), torch.ones(len(cases)), accumulate=True)
            policy.logits[slot].copy_((table / table.sum(1, keepdim=True)).log())
    return policy


CaseJudge = Callable[[Tensor, torch.Generator], Tensor]  # cases (n, T) → r of a reply to each, (n,)


@dataclass(frozen=True)
class SlotRun:
    """A trained policy, and per step the batch's mean reward and mean KL divergence in nats."""

    policy: SlotPolicy
    rewards: tuple[float, ...]
    divergences: tuple[float, ...]


def train_slot_policy(
    initial: SlotPolicy,
    judge: CaseJudge,
    alpha: float,
    generator: torch.Generator,
    *,
    steps: int = 300,
    batch: int = 64,
    rate: float = 0.05,
) -> SlotRun:
    """Train a copy of `initial` with advantage actor-critic and a KL penalty of weight alpha."""
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
