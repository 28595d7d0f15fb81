"""Sampling: from logits to a token, one sequence at a time, so that no other can change it.

The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p.
Sources: Keskar et al. (2019), CTRL, for the penalty; Holtzman et al. (2020) for top-p; Nguyen et
al. (2024) for min-p. Chapter: serving/continuous-batching.
"""

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from course_pkg.serving.request import LogProb, SamplingParams

FIRST_SORTED = 1024  # the most likely tokens; they almost always have enough mass for top-p


def choose(
    logits: Tensor, params: SamplingParams, tokens: Sequence[int], generator: random.Random
) -> int:
    """The next token: the most likely one at temperature 0, otherwise a random one.

    logits: (vocab,). tokens: the prompt and what was generated, for the penalty. Raises ValueError
    if a random one is wanted and there is NaN.

    >>> choose(torch.tensor([1.0, 3.0, 2.0]), SamplingParams(top_k=1), [], random.Random(0))
    1
    """
    if params.temperature == 0:
        return int(_penalized(logits.float(), params, tokens).argmax())
    cumulative = probabilities(logits, params, tokens).cumsum(0)  # (vocab,)
    total = cumulative[-1].item()
    if math.isnan(total):
        raise ValueError("the logits have NaN: the model or its adapter is damaged or overflows")
    # The first token whose cumulative probability exceeds the number, which is below the total.
    return int(torch.searchsorted(cumulative, generator.random() * total, right=True))


def probabilities(logits: Tensor, params: SamplingParams, tokens: Sequence[int] = ()) -> Tensor:
    """The distribution that a token is drawn from, (vocab,), in fp64. temperature is above 0.

    repetition_penalty divides positive logits of earlier tokens and multiplies negative ones. The
    temperature divides all. top_k keeps the k most likely tokens, with ties; top_p the fewest whose
    probability is at least p together; min_p those with at least min_p times the largest one.

    >>> logits = torch.tensor([0.5, 0.3, 0.2]).log()
    >>> probabilities(logits, SamplingParams(top_p=0.7))
    tensor([0.6250, 0.3750, 0.0000], dtype=torch.float64)
    """
    scores = _penalized(logits.float(), params, tokens)
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

    logits: (vocab,). top: how many of the most likely tokens to give beside it.

    >>> log_probability(torch.tensor([0.75, 0.25]).log(), 1, 1)
    LogProb(token=1, logprob=-1.386294..., top=((0, -0.287682...),))
    """
    logprobs = logits.float().log_softmax(0)
    best = logprobs.topk(top)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return LogProb(token, logprobs[token].item(), tuple(pairs))


def _penalized(logits: Tensor, params: SamplingParams, tokens: Sequence[int]) -> Tensor:
    if params.repetition_penalty == 1 or not tokens:
        return logits
    seen = torch.tensor(sorted(set(tokens)), device=logits.device)
    old = logits[seen]
    penalty = params.repetition_penalty
    return logits.index_copy(0, seen, torch.where(old > 0, old / penalty, old * penalty))


def _nucleus(kept: Tensor, top_p: float) -> Tensor:
    """The probabilities with all but the fewest that together have at least top_p set to 0."""
    values, ids = kept.topk(min(FIRST_SORTED, len(kept)))
    if values.sum() < top_p:
        values, ids = kept.sort(descending=True, stable=True)
    before = values.cumsum(0) - values  # the mass of those that are more likely
    ids = ids[: max(1, int((before < top_p).sum()))]
    return torch.zeros_like(kept).index_copy(0, ids, kept[ids])
