"""Sampling: from logits to a token, one sequence at a time, so that no other can change it.

The order is that of vLLM: biases, repetition penalty, frequency and presence penalty, temperature,
top-k, top-p, min-p. Sources: Keskar et al. (2019), CTRL, for the repetition penalty; OpenAI's API
for the biases and the other two penalties; Holtzman et al. (2020) for top-p; Nguyen et al. (2024)
for min-p. Chapter: serving/continuous-batching.
"""

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from course_pkg.serving.request import LogProb, SamplingParams

FIRST_SORTED = 1024  # the most likely tokens; they almost always have enough mass for top-p


def choose(
    logits: Tensor,
    params: SamplingParams,
    tokens: Sequence[int],
    generator: random.Random,
    *,
    prompt_tokens: int = 0,
) -> int:
    """The next token: the most likely one at temperature 0, otherwise a random one.

    logits: (vocab,). tokens: the prompt, of prompt_tokens tokens, and what was generated, for the
    penalties. Raises ValueError if the logits have NaN or infinity, or -infinity alone.

    >>> choose(torch.tensor([1.0, 3.0, 2.0]), SamplingParams(top_k=1), [], random.Random(0))
    1
    """
    if params.temperature == 0:
        scores = _adjusted(logits.float(), params, tokens, prompt_tokens)
        best = int(scores.argmax())
        check_finite(scores[best].item())
        return best
    chances = probabilities(logits, params, tokens, prompt_tokens=prompt_tokens)  # (vocab,)
    cumulative = chances.cumsum(0)
    total = cumulative[-1].item()
    check_finite(total)
    # The first token whose cumulative probability exceeds the number, which is below the total.
    return int(torch.searchsorted(cumulative, generator.random() * total, right=True))


def check_finite(number: float) -> None:
    """Raise ValueError unless a number that was computed from logits is one.

    It may be the largest logit: a row with NaN has NaN as its largest.
    """
    if not math.isfinite(number):
        raise ValueError(
            "the logits have NaN or infinity: the model or its adapter is damaged or overflows"
        )


def probabilities(
    logits: Tensor,
    params: SamplingParams,
    tokens: Sequence[int] = (),
    *,
    prompt_tokens: int = 0,
) -> Tensor:
    """The distribution that a token is drawn from, (vocab,), in fp64. temperature is above 0.

    logit_bias is added to the logits of its tokens. repetition_penalty divides positive logits of
    earlier tokens and multiplies negative ones. A token that was generated c times loses
    c * frequency_penalty, and presence_penalty if c > 0; the first prompt_tokens of the tokens
    don't count for these two. The temperature divides all. top_k keeps the k most likely tokens,
    with ties; top_p the fewest whose probability is at least p together; min_p those with at least
    min_p times the largest one.

    >>> logits = torch.tensor([0.5, 0.3, 0.2]).log()
    >>> probabilities(logits, SamplingParams(top_p=0.7))
    tensor([0.6250, 0.3750, 0.0000], dtype=torch.float64)
    """
    scores = _adjusted(logits.float(), params, tokens, prompt_tokens)
    scores = (scores - scores.max()).double() / params.temperature
    if 0 < params.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(params.top_k).values[-1], -torch.inf)
    kept = scores.softmax(0)
    if params.top_p < 1:
        kept = _nucleus(kept, params.top_p)
    if params.min_p > 0:
        kept = kept.where(kept >= params.min_p * kept.max(), 0)
    return kept / kept.sum()


def log_probability(logits: Tensor, token: int, top: int) -> LogProb:
    """The model's own log-probability of a token, before penalty, temperature and filters.

    logits: (vocab,). top: how many of the most likely tokens to give beside it. Raises ValueError
    if the logits have NaN or infinity.

    >>> log_probability(torch.tensor([0.75, 0.25]).log(), 1, 1)
    LogProb(token=1, logprob=-1.386294..., top=((0, -0.287682...),))
    """
    logprobs = logits.float().log_softmax(0)
    best = logprobs.topk(max(1, top))
    values = best.values.tolist()
    check_finite(values[0])
    pairs = list(zip(best.indices.tolist(), values, strict=True))
    return LogProb(token, logprobs[token].item(), tuple(pairs[:top]))


def _adjusted(
    logits: Tensor, params: SamplingParams, tokens: Sequence[int], prompt_tokens: int
) -> Tensor:
    """The logits after biases and penalties, (vocab,)."""
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        places = torch.tensor(ids, device=logits.device)
        logits = logits.index_add(
            0, places, torch.tensor(biases, dtype=logits.dtype, device=logits.device)
        )
    if params.repetition_penalty != 1 and tokens:
        logits = _repetition(logits, params.repetition_penalty, tokens)
    generated = tokens[prompt_tokens:]
    if generated and (params.frequency_penalty or params.presence_penalty):
        ids = torch.tensor(generated, device=logits.device)
        counts = torch.bincount(ids, minlength=len(logits))  # (vocab,)
        logits = logits - params.frequency_penalty * counts
        logits = logits - params.presence_penalty * (counts > 0).float()
    return logits


def _repetition(logits: Tensor, penalty: float, tokens: Sequence[int]) -> Tensor:
    seen = torch.tensor(sorted(set(tokens)), device=logits.device)
    old = logits[seen]
    return logits.index_copy(0, seen, torch.where(old > 0, old / penalty, old * penalty))


def _nucleus(kept: Tensor, top_p: float) -> Tensor:
    """The probabilities with all but the fewest that together have at least top_p set to 0."""
    values, ids = kept.topk(min(FIRST_SORTED, len(kept)))
    if values.sum() < top_p:
        values, ids = kept.sort(descending=True, stable=True)
    before = values.cumsum(0) - values  # the mass of those that are more likely
    ids = ids[: max(1, int((before < top_p).sum()))]
    return torch.zeros_like(kept).index_copy(0, ids, kept[ids])
