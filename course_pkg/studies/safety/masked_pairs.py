"""CrowS-Pairs' own score: pseudo-log-likelihood of the shared tokens, by a masked language model.

Mask one shared token at a time, and read the probability of the token that was there, given all
others, the word that differs included:

    score(sentence) = Σ_{i in S} ln p(x_i | all tokens of the sentence but x_i)

It is not the log-probability of anything: the sum is over different contexts. It compares two
sentences that share the tokens S. Special tokens are never masked.
Source: Nangia et al. 2020 (arXiv 2010.00133), equation 1, and the authors' metric.py; Salazar et
al. 2020, "Masked Language Model Scoring", on pseudo-log-likelihood. Chapter: evaluation/safety.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_integer, require_list
from course_pkg.studies.safety.contrasts import SentencePair
from course_pkg.studies.safety.pair_scores import shared_positions


def score_masked_pairs(
    model: nn.Module,
    tokenizer: Tokenizer,
    pairs: Sequence[SentencePair],
    *,
    batch_size: int = 64,
) -> list[tuple[float, float]]:
    """The pseudo-log-likelihoods (of more, of less) of each pair's shared tokens.

    model: a masked language model of transformers in evaluation mode, such as BertForMaskedLM.
    batch_size: masked copies in a forward pass. Raises ValueError for an empty list, a tokenizer
    without a mask token, or a pair that shares no token.
    Source: Nangia et al. 2020, equation 1. Chapter: evaluation/safety.
    """
    require_integer(batch_size, "batch_size")
    if not require_list(pairs, "pairs", "give a list of SentencePair"):
        raise ValueError("pairs is empty: give at least one SentencePair")
    if tokenizer.mask_token_id is None:
        raise ValueError("the tokenizer has no mask token: load one of a masked language model")
    copies: list[tuple[list[int], int, int]] = []  # tokens, masked position, number of the sentence
    for number, pair in enumerate(pairs):
        encoded = [tokenizer(text).input_ids for text in (pair.more, pair.less)]
        special = set(tokenizer.all_special_ids)
        both = [
            positions
            for positions in shared_positions(*encoded)
            if encoded[0][positions[0]] not in special
        ]
        if not both:
            raise ValueError(f"the sentences of pair {number} share no token: {pair}")
        for side, ids in enumerate(encoded):
            copies += [(ids, positions[side], 2 * number + side) for positions in both]
    terms: list[list[float]] = [[] for _ in range(2 * len(pairs))]
    order = sorted(copies, key=lambda copy: len(copy[0]))  # equal lengths together: little padding
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        values = _masked_log_probs(model, tokenizer, [copy[:2] for copy in batch])
        for (_, _, number), value in zip(batch, values, strict=True):
            terms[number].append(value)
    sums = [math.fsum(each) for each in terms]
    return list(zip(sums[::2], sums[1::2], strict=True))


@torch.no_grad()
def _masked_log_probs(
    model: nn.Module, tokenizer: Tokenizer, masked: Sequence[tuple[list[int], int]]
) -> list[float]:
    """ln p of the token at each place, when it is masked."""
    longest = max(len(ids) for ids, _ in masked)
    device = next(model.parameters()).device
    inputs = torch.zeros(len(masked), longest, dtype=torch.long, device=device)
    seen = torch.zeros_like(inputs)
    for row, (ids, place) in enumerate(masked):
        inputs[row, : len(ids)] = torch.tensor(ids, device=device)
        inputs[row, place] = tokenizer.mask_token_id
        seen[row, : len(ids)] = 1
    logits = model(input_ids=inputs, attention_mask=seen).logits  # (rows, longest, vocab)
    rows = torch.arange(len(masked), device=device)
    places = torch.tensor([place for _, place in masked], device=device)
    targets = torch.tensor([ids[place] for ids, place in masked], device=device)
    return logits[rows, places].float().log_softmax(-1)[rows, targets].tolist()
