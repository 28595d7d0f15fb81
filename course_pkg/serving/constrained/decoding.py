"""Constrained decoding: a processor for generate, and a greedy loop that jumps over forced tokens.

A jump gives the model all forced tokens at once, so a text whose layout is fixed needs fewer
passes. Sources: the blog of outlines (2024) on coalescence; Zheng et al. (2024), SGLang, section 4,
on jump-forward decoding.
"""

from dataclasses import dataclass

import torch
from torch import LongTensor, Tensor
from transformers import DynamicCache, LogitsProcessor, PreTrainedModel

from course_pkg.common.arguments import require_bool, require_integer, require_list
from course_pkg.serving.constrained.guide import FINISHED, Guide


class ConstrainedLogitsProcessor(LogitsProcessor):
    """Sets the logits of tokens that the constraint does not allow to -infinity.

    It finds the state of a row by the row's tokens, not by its place in the batch: beam search
    moves rows. A row whose tokens without the last one had no state in the step before begins a new
    text, and what it holds is its prompt.

    Args:
        guide: a compiled constraint, or one for each row of the batch (not with beam search); None
            leaves a row as it is.
    """

    def __init__(self, guide: Guide | list[Guide | None]):
        self.guide = guide
        self._states: dict[tuple[int | None, bytes], int] = {}  # by the row's tokens so far

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        """The scores, (batch, vocab), of rows with the tokens input_ids, (batch, length)."""
        rows = input_ids.tolist()
        if isinstance(self.guide, Guide):
            guides = [self.guide] * len(rows)
            places = [None] * len(rows)
        else:
            guides = self.guide
            places = list(range(len(rows)))
        if len(guides) != len(rows):
            raise ValueError(f"{len(guides)} guides for {len(rows)} rows: give one for each row")
        states = {}
        scores = scores.clone()
        for row, (place, guide, tokens) in enumerate(zip(places, guides, rows, strict=True)):
            if guide is None:
                continue
            key = place, _key(tokens)
            before = self._states.get((place, _key(tokens[:-1])))
            if before is None:
                states[key] = guide.start
            elif before == FINISHED:  # generate fills up rows that have ended with padding
                states[key] = FINISHED
            else:
                states[key] = guide.advance(before, tokens[-1])
            scores[row] = constrain(scores[row], guide.mask(states[key]))
        self._states = states
        return scores


def constrain(logits: Tensor, mask: Tensor) -> Tensor:
    """The logits, (…, columns), with -infinity for tokens that the mask, (…, vocab), excludes.

    Some models have more columns than the tokenizer has tokens; these are excluded too.
    """
    missing = logits.shape[-1] - mask.shape[-1]
    if missing < 0:
        raise ValueError(
            f"the logits have {logits.shape[-1]} columns, the vocabulary {mask.shape[-1]} tokens: "
            "give the vocabulary of the model's own tokenizer"
        )
    if missing:
        mask = torch.nn.functional.pad(mask, (0, missing))
    return torch.where(mask.to(logits.device), logits, -torch.inf)


def _key(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


@dataclass(frozen=True)
class ConstrainedGeneration:
    """What was generated under a constraint.

    Attributes:
        passes: forward passes, including the prompt's.
        finished: whether the text is complete; otherwise max_new_tokens cut it off.
    """

    tokens: list[int]
    passes: int
    finished: bool


@torch.inference_mode()
def generate_greedily(
    model: PreTrainedModel,
    prompt: list[int],
    guide: Guide,
    max_new_tokens: int,
    *,
    jumps: bool = True,
) -> ConstrainedGeneration:
    """The most likely allowed token, again and again, until an end token is the most likely.

    Args:
        prompt: token ids, at least one.
        jumps: forced tokens are taken without asking the model.
    """
    require_list(prompt, "prompt", "give its token ids")
    require_integer(max_new_tokens, "max_new_tokens")
    require_bool(jumps, "jumps")
    if not prompt:
        raise ValueError("the prompt has no tokens: give at least one")
    cache = DynamicCache(config=model.config)
    state = guide.start
    tokens: list[int] = []
    unseen = list(prompt)  # tokens that the model has not read
    passes = 0
    while state != FINISHED and len(tokens) < max_new_tokens:
        new = guide.forced(state) if jumps else []
        if not new:
            ids = torch.tensor([unseen], device=model.device)  # (1, tokens)
            logits = model(ids, past_key_values=cache, logits_to_keep=1).logits[0, -1]  # (vocab,)
            passes += 1
            unseen = []
            new = [int(constrain(logits, guide.mask(state)).argmax())]
        for token in new[: max_new_tokens - len(tokens)]:
            tokens.append(token)
            unseen.append(token)
            state = guide.advance(state, token)
    return ConstrainedGeneration(tokens, passes, state == FINISHED)
