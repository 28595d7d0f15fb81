"""A language model of transformers, in this process, as a judge.

It answers the two questions of `judge`: with what probability does the answer begin with each of
these options, and what do you write? It knows nothing of criteria, scores or biases. For a model
behind a server see judge_endpoint.

Source: Liu et al. 2023, "G-Eval", section 2 (probabilities of the score tokens).
Chapter: metrics/judge.
"""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.metrics.judge.geval import JudgeError

Route = tuple[int, ...]  # the tokens that spell an option


class LocalJudge:
    """A causal language model and its tokenizer, as a judge.

    The prompt is the user's turn of the tokenizer's chat template, where it has one, and the
    form's first words begin the model's own turn. Raises TypeError unless given both.

    >>> from course_pkg.lm.load import load
    >>> judge = LocalJudge(*load("tiny"))
    >>> list(judge.option_probabilities("Is it?", "Answer:", ["yes", "no"]))
    ['yes', 'no']
    >>> len(judge.write("Say something.", "", n=2, max_tokens=4, temperature=1.0, seed=0))
    2
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        if not hasattr(model, "generate") or not hasattr(tokenizer, "decode"):
            raise TypeError("LocalJudge(model, tokenizer): give both that load() returns")
        self.model, self.tokenizer = model, tokenizer

    @torch.no_grad()
    def option_probabilities(
        self, prompt: str, start: str, options: Sequence[str]
    ) -> dict[str, float]:
        """Probability that the answer, after `start`, is each option; they add up to at most 1.

        An option's is the product over its tokens, summed over its spellings "3" and " 3". Where
        one option begins another (1 and 10), the longer one's is taken off the shorter's.
        Raises JudgeError if `start` would merge with an option, or the model can't take so much.
        """
        whole = self._text(prompt, start)
        ids = self._encode(whole)
        routes: dict[Route, str] = {}
        for option in options:
            for spelling in (option, f" {option}"):
                longer = self._encode(whole + spelling)
                if longer[: len(ids)] == ids and len(longer) > len(ids):
                    routes[tuple(longer[len(ids) :])] = option
        if missing := sorted(set(options) - set(routes.values())):
            raise JudgeError(
                f"the tokenizer merges {missing} with the end of {start!r}; end it with a colon"
            )
        self._check_room(len(ids), max(map(len, routes)))
        output = self.model(self._tensor([ids]), use_cache=True, logits_to_keep=1)
        nexts = {(): output.logits[0, -1].double().log_softmax(-1)}  # log p of the next token

        def probability(route: Route) -> float:
            total = 0.0
            for cut, token in enumerate(route):
                before = route[:cut]
                if before not in nexts:
                    cache = copy.deepcopy(output.past_key_values)
                    logits = self.model(self._tensor([before]), past_key_values=cache).logits
                    nexts[before] = logits[0, -1].double().log_softmax(-1)
                total += nexts[before][token].item()
            return math.exp(total)

        masses: dict[Route, float] = {}
        for route in sorted(routes, key=len, reverse=True):
            inside = sum(mass for r, mass in masses.items() if r[: len(route)] == route)
            masses[route] = max(0.0, probability(route) - inside)
        sums = dict.fromkeys(options, 0.0)
        for route, option in routes.items():
            sums[option] += masses[route]
        return sums

    @torch.no_grad()
    def write(
        self,
        prompt: str,
        start: str = "",
        *,
        n: int = 1,
        max_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        """n answers that continue `start`; temperature 0 is greedy, and all answers are equal."""
        ids = self._encode(self._text(prompt, start))
        self._check_room(len(ids), max_tokens)
        rows = n if temperature > 0 else 1
        output = self.model(self._tensor([ids]), use_cache=True, logits_to_keep=1)
        cache, logits = output.past_key_values, output.logits[0, -1].expand(rows, -1)
        cache.batch_repeat_interleave(rows)  # the prompt is read once, for all answers
        generator = torch.Generator().manual_seed(seed)
        ends = torch.tensor(self._ends(), dtype=torch.long)
        written = torch.empty(rows, 0, dtype=torch.long)
        for _ in range(max_tokens):
            if temperature > 0:
                weights = (logits.float().cpu() / temperature).softmax(-1)
                token = torch.multinomial(weights, 1, generator=generator)  # (rows, 1)
            else:
                token = logits.argmax(-1, keepdim=True).cpu()
            written = torch.cat([written, token], dim=1)
            if torch.isin(written, ends).any(1).all():
                break
            step = self.model(token.to(self.model.device), past_key_values=cache)
            logits = step.logits[:, -1]
        replies = [self._decode(row, ends) for row in written]
        return replies * (n // rows)

    def _text(self, prompt: str, start: str) -> str:
        if not self.tokenizer.chat_template:
            return f"{prompt}\n{start}"
        turns = [{"role": "user", "content": prompt}]
        chat = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return chat + start

    def _encode(self, text: str) -> list[int]:
        special = not self.tokenizer.chat_template  # a template writes its special tokens itself
        return self.tokenizer(text, add_special_tokens=special).input_ids

    def _decode(self, row: Tensor, ends: Tensor) -> str:
        stop = torch.isin(row, ends).nonzero()
        kept = row[: stop[0]] if len(stop) else row
        return self.tokenizer.decode(kept, skip_special_tokens=True)

    def _ends(self) -> list[int]:
        """The tokens that end an answer."""
        ends = self.model.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else ends or []
        own = self.tokenizer.eos_token_id
        return [*ends] if own is None else [*ends, own]

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([list(row) for row in rows], device=self.model.device)

    def _check_room(self, prompt: int, more: int) -> None:
        most = getattr(self.model.config, "max_position_embeddings", None)
        if most is not None and prompt + more > most:
            raise JudgeError(
                f"prompt and answer take {prompt + more} tokens, the model at most {most}; "
                "judge a shorter text"
            )
