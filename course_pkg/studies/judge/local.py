"""A local judge: a transformers language model that runs in this process."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_between
from course_pkg.studies.judge.geval import JudgeError

Spelling = tuple[int, ...]  # the tokens of one spelling of an option


class LocalJudge:
    """A causal language model and its tokenizer, as a judge.

    With a chat template, the prompt is the user's turn, and `start` begins the model's turn.

    Args:
        reuse_prompt: keep the last prompt's keys and values, and compute only what differs. Then
            don't change the model's weights between two calls.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Tokenizer, *, reuse_prompt: bool = False
    ) -> None:
        if not hasattr(model, "generate") or not hasattr(tokenizer, "decode"):
            raise TypeError(
                "LocalJudge needs a model and a tokenizer, got "
                f"{type(model).__name__} and {type(tokenizer).__name__}: pass *load(name)"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.reuse_prompt = reuse_prompt
        self._last_ids: list[int] = []
        self._last_cache: DynamicCache | None = None

    @torch.no_grad()
    def option_probabilities(
        self, prompt: str, start: str, options: Sequence[str]
    ) -> dict[str, float]:
        """Each option's probability as the answer after `start`; the sum is at most 1.

        A spelling's is the product over its tokens; "3" and " 3" are added up. If one option is a
        prefix of another (1 and 10), the longer one's probability is subtracted from the shorter's.
        """
        text = self._text(prompt, start)
        ids = self._encode(text)
        spellings: dict[Spelling, str] = {}
        for option in options:
            for written in (option, f" {option}"):
                encoded = self._encode(text + written)
                if encoded[: len(ids)] == ids and len(encoded) > len(ids):
                    spellings[tuple(encoded[len(ids) :])] = option
        if missing := sorted(set(options) - set(spellings.values())):
            raise JudgeError(f"the tokenizer merges {missing} with {start!r}; end it with a colon")
        self._check_length(len(ids), max(map(len, spellings)))
        output = self._read(ids)
        # log-probabilities of the next token, by the tokens of the answer so far
        log_probs = {(): output.logits[0, -1].double().log_softmax(-1)}

        def probability(spelling: Spelling) -> float:
            total = 0.0
            for length, token in enumerate(spelling):
                prefix = spelling[:length]
                if prefix not in log_probs:
                    cache = copy.deepcopy(output.past_key_values)
                    logits = self.model(self._tensor([prefix]), past_key_values=cache).logits
                    log_probs[prefix] = logits[0, -1].double().log_softmax(-1)
                total += log_probs[prefix][token].item()
            return math.exp(total)

        masses: dict[Spelling, float] = {}
        for spelling in sorted(spellings, key=len, reverse=True):
            longer = [mass for s, mass in masses.items() if s[: len(spelling)] == spelling]
            masses[spelling] = max(0.0, probability(spelling) - sum(longer))
        sums = dict.fromkeys(options, 0.0)
        for spelling, option in spellings.items():
            sums[option] += masses[spelling]
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
        """Return n answers that continue `start`; temperature 0 is greedy: all are equal."""
        require_between(temperature, "temperature", 0, math.inf, closed=True)
        ids = self._encode(self._text(prompt, start))
        self._check_length(len(ids), max_tokens)
        rows = n if temperature > 0 else 1
        output = self.model(self._tensor([ids]), use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        logits = output.logits[0, -1].expand(rows, -1)
        cache.batch_repeat_interleave(rows)  # one forward pass over the prompt for all answers
        generator = torch.Generator().manual_seed(seed)
        ends = torch.tensor(self._end_tokens(), dtype=torch.long)
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

    def _read(self, ids: list[int]):
        """Return the output after a prompt; reuse the cache of what it shares with the last one."""
        cache = None
        shared = 0
        if self._last_cache is not None:
            longest = min(len(ids) - 1, len(self._last_ids))  # the cache holds no logits
            while shared < longest and ids[shared] == self._last_ids[shared]:
                shared += 1
            removed = len(self._last_ids) - shared
            cache = self._last_cache
            self._last_cache = None  # incomplete if the model raises an error
            if removed:
                cache.crop(-removed)
        output = self.model(
            self._tensor([ids[shared:]]), past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        kept = output.past_key_values
        # A layer with a sliding window forgets tokens, so its cache can't be cut.
        if self.reuse_prompt and isinstance(kept, DynamicCache) and not any(kept.is_sliding):
            self._last_ids = list(ids)
            self._last_cache = kept
        return output

    def _text(self, prompt: str, start: str) -> str:
        if not self.tokenizer.chat_template:
            return f"{prompt}\n{start}"
        turns = [{"role": "user", "content": prompt}]
        chat = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return chat + start

    def _encode(self, text: str) -> list[int]:
        special = not self.tokenizer.chat_template  # a template already adds special tokens
        return self.tokenizer(text, add_special_tokens=special).input_ids

    def _decode(self, row: Tensor, ends: Tensor) -> str:
        stop = torch.isin(row, ends).nonzero()
        kept = row[: stop[0]] if len(stop) else row
        return self.tokenizer.decode(kept, skip_special_tokens=True)

    def _end_tokens(self) -> list[int]:
        """The tokens that end an answer: the model's and the tokenizer's."""
        ends = self.model.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else ends or []
        eos = self.tokenizer.eos_token_id
        return [*ends] if eos is None else [*ends, eos]

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([list(row) for row in rows], device=self.model.device)

    def _check_length(self, prompt: int, answer: int) -> None:
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and prompt + answer > limit:
            raise JudgeError(
                f"the prompt and the answer have {prompt + answer} tokens, but the model can read "
                f"at most {limit}; judge a shorter text"
            )
