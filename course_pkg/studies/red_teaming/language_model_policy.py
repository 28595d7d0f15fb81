"""A language model as the policy of a red team: drawn cases, their log-probabilities, and values.

Without its adapter the model is the initial policy p_0, so one model in memory serves as both.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_pkg.adapters.injection import disable_adapters
from course_pkg.common.arguments import require_integer
from course_pkg.studies.red_teaming.objective import next_token_kl


@dataclass(frozen=True)
class CaseBatch:
    """Cases as token ids, (n, T); mask: 1.0 for the tokens of a case, its end included, (n, T)."""

    tokens: Tensor
    mask: Tensor


class LanguageModelPolicy(nn.Module):
    """p_r(x) of a causal transformers model with adapters, and a linear critic on its last states.

    Args:
        prompt: the token ids that every case continues.
        ends: ids that end a case, such as those with "?".
        limit: the most tokens of a case.
    """

    def __init__(
        self, model: nn.Module, prompt: list[int], ends: Collection[int], limit: int
    ) -> None:
        super().__init__()
        require_integer(limit, "limit")
        if not prompt or not ends:
            raise ValueError(f"{len(prompt)} tokens and {len(ends)} ends: both need at least one")
        self.model = model
        self.critic = nn.Linear(model.config.hidden_size, 1)
        nn.init.zeros_(self.critic.weight)
        nn.init.zeros_(self.critic.bias)
        self.prompt = torch.tensor([prompt])
        self.ends = torch.tensor(sorted(ends))
        self.limit = limit

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> CaseBatch:
        """Draw cases from p_r itself, uncut and at temperature 1, as its gradient needs."""
        require_integer(count, "count")
        newest = self.prompt.expand(count, -1)
        running = torch.ones(count)
        cache = None
        tokens: list[Tensor] = []
        masks: list[Tensor] = []
        while running.any() and len(tokens) < self.limit:
            output = self.model(input_ids=newest, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            probabilities = output.logits[:, -1].softmax(-1)
            newest = torch.multinomial(probabilities, 1, generator=generator)
            tokens.append(newest[:, 0])
            masks.append(running)
            running = running * ~torch.isin(newest[:, 0], self.ends)
        return CaseBatch(torch.stack(tokens, 1), torch.stack(masks, 1))

    def next_log_probs(self, cases: CaseBatch) -> tuple[Tensor, Tensor]:
        """``ln p_r(·|s_t)``, (n, T, v), and the hidden states that they come from, (n, T, d)."""
        count, length = cases.tokens.shape
        ids = torch.cat([self.prompt.expand(count, -1), cases.tokens[:, :-1]], 1)
        states = self.model.model(input_ids=ids).last_hidden_state[:, -length:]
        return self.model.lm_head(states).log_softmax(-1), states

    def evaluate(self, cases: CaseBatch) -> tuple[Tensor, Tensor, Tensor]:
        """ln p_r of the drawn tokens, V(s_t), ``KL(p_r(·|s_t) || p_0(·|s_t))``: three of (n, T)."""
        log_probs, states = self.next_log_probs(cases)
        with torch.no_grad(), disable_adapters(self.model):
            initial, _ = self.next_log_probs(cases)
        chosen = log_probs.gather(2, cases.tokens[..., None]).squeeze(2)
        values = self.critic(states.detach()).squeeze(2)
        return chosen, values, next_token_kl(log_probs, initial)
