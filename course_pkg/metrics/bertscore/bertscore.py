"""BERTScore: how well the tokens of two texts match, measured by the vectors of an encoder::

    P = sum_i u_i max_j  x^_i . x_j  / sum_i u_i       over the hypothesis' tokens, x^
    R = sum_j v_j max_i  x^_i . x_j  / sum_j v_j       over the reference's tokens, x
    F = 2 P R / (P + R)

All vectors have length 1; u and v are 1 (or idf weights), and 0 at [CLS] and [SEP]. Published
baselines are not included, because each is valid for a single encoder and layer.

Source: Zhang et al. 2020, "BERTScore: Evaluating Text Generation with BERT", section 3.
"""

import math
import random
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from course_pkg.common.arguments import (
    require_bool,
    require_choice,
    require_integer,
    require_list,
    require_number,
    require_string,
    text_list,
)
from course_pkg.lm.encoder import Encoder, TokenVectors, check_layer, load_encoder, token_vectors


class IdfWeights(NamedTuple):
    """The idf weight of each token id in the references; `unseen` is the weight of all others."""

    weights: dict[int, float]
    unseen: float


@dataclass(frozen=True)
class TokenMatches:
    """The tokens of two texts, and their cosines, (hypothesis tokens, reference tokens)."""

    hypothesis: tuple[str, ...]
    reference: tuple[str, ...]
    similarity: Tensor


def token_matches(
    hypothesis: str,
    reference: str,
    encoder: Encoder | None = None,
    *,
    layer: int | None = None,
) -> TokenMatches:
    """Compute the cosines between the tokens of two texts; arguments as for `bert_score`."""
    encoder = load_encoder() if encoder is None else encoder
    sides = token_vectors(encoder, [hypothesis, reference], layer=layer)
    tokens = [tuple(encoder.tokenizer.convert_ids_to_tokens(side.ids.tolist())) for side in sides]
    return TokenMatches(*tokens, (unit_vectors(sides[0]) @ unit_vectors(sides[1]).T).cpu())


def idf_weights(references: Sequence[str], encoder: Encoder | None = None) -> IdfWeights:
    """Weight each token by ln((N + 1) / (n + 1)), where n of the N references contain it."""
    encoder = load_encoder() if encoder is None else encoder
    return idf_of(token_vectors(encoder, references, layer=0))


def idf_of(references: Sequence[TokenVectors]) -> IdfWeights:
    """`idf_weights` of references that are already encoded."""
    if not references:
        raise ValueError("idf needs at least one reference, got none")
    total = len(references)
    found_in = Counter(token for reference in references for token in set(reference.ids.tolist()))
    weights = {token: math.log((total + 1) / (n + 1)) for token, n in found_in.items()}
    return IdfWeights(weights, math.log(total + 1))


def unit_vectors(text: TokenVectors) -> Tensor:
    """The vectors (n, width), each divided by its length, in fp32 or wider."""
    wide = torch.promote_types(text.vectors.dtype, torch.float32)
    return normalize(text.vectors.to(wide), dim=-1)


def token_weights(text: TokenVectors, idf: IdfWeights | None) -> Tensor:
    """The weight of each token in its text's mean, (n,), adding up to 1; 0 for [CLS] and [SEP].

    If all idf weights of a text are 0, its tokens have equal weights.
    """
    weights = (~text.special).float()
    if idf is not None:
        values = [idf.weights.get(token, idf.unseen) for token in text.ids.tolist()]
        weighted = weights * torch.tensor(values)
        weights = weighted if weighted.sum() > 0 else weights
    return (weights / weights.sum().clamp(min=1e-12)).to(text.vectors.device)


def pair_scores(batch: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Tensor:
    """Compute P, R and F of each pair of texts, (batch, 3) (Zhang et al. 2020, section 3).

    batch: unit vectors (n, width) and weights (n,) of a hypothesis, then of a reference. Pads are
    masked with -inf; a 0 would be larger than a negative cosine. F is 0 where P or R is not
    positive; a text without tokens scores 0.
    """
    x_hat, u, x, v = zip(*batch, strict=True)
    cosines = pad_sequence(x_hat, True) @ pad_sequence(x, True).mT  # (batch, row, column)
    rows, columns = (  # True at tokens, False at pads
        pad_sequence([torch.ones_like(w) for w in side], True) > 0 for side in (u, v)
    )
    best_of_hypothesis = cosines.masked_fill(~columns[:, None, :], -torch.inf).amax(2)
    best_of_reference = cosines.masked_fill(~rows[:, :, None], -torch.inf).amax(1)
    u = pad_sequence(u, True)
    v = pad_sequence(v, True)
    not_empty = (u.sum(1) > 0) & (v.sum(1) > 0)  # both texts have tokens
    precision = (best_of_hypothesis * u).sum(1) * not_empty
    recall = (best_of_reference * v).sum(1) * not_empty
    positive = (precision > 0) & (recall > 0)  # a harmonic mean needs positive numbers
    f1 = torch.where(positive, 2 * precision * recall / (precision + recall), 0.0)
    return torch.stack([precision, recall, f1], dim=1)


class Baseline(NamedTuple):
    """The mean scores of unrelated sentences, for one encoder and layer."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class BertScores:
    """Scores of N hypotheses, (N,) on the CPU; truncated: those that the encoder's limit cut."""

    precision: Tensor
    recall: Tensor
    f1: Tensor
    layer: int
    idf: bool
    baseline: Baseline | None
    truncated: tuple[int, ...]


def bert_score(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    encoder: Encoder | None = None,
    *,
    layer: int | None = None,
    idf: bool = False,
    rescale: Baseline | None = None,
    multi: Literal["best", "each"] = "best",
    batch_size: int = 64,
) -> BertScores:
    """Compute BERTScore of each hypothesis against its reference or references.

    Args:
        encoder: from `load_encoder` (None: MiniLM-L6).
        layer: 0 to encoder.layers (None: the last).
        idf: weights tokens by `idf_weights` of these references.
        rescale: a `Baseline` of the same encoder and layer; x becomes (x - b) / (1 - b).
        multi: "best" takes P, R and F of the reference with the best F; "each" takes the best P,
            the best R and the best F, possibly of different references, as the authors' tool does.
    """
    groups = _groups(hypotheses, references)
    require_choice(multi, "multi", ("best", "each"))
    require_integer(batch_size, "batch_size")
    if rescale is not None:
        if not isinstance(rescale, tuple) or len(rescale) != 3:
            raise TypeError(f"rescale must be a Baseline of three numbers, got {rescale!r:.80}")
        if not all(-1 <= require_number(value, "a baseline") < 1 for value in rescale):
            raise ValueError(f"rescale must contain values from -1 to below 1, got {rescale}")
    require_bool(idf, "idf")
    encoder = load_encoder() if encoder is None else encoder
    layer = check_layer(encoder, layer)
    pairs = [(h, r) for h, group in zip(hypotheses, groups, strict=True) for r in group]
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    encoded = dict(zip(texts, token_vectors(encoder, texts, layer=layer), strict=True))
    weights = idf_of([encoded[text] for group in groups for text in group]) if idf else None
    sides = {
        text: (unit_vectors(vectors), token_weights(vectors, weights))
        for text, vectors in encoded.items()
    }
    flat = torch.zeros(len(pairs), 3)
    order = sorted(range(len(pairs)), key=lambda k: -len(sides[pairs[k][0]][0]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        flat[batch] = pair_scores([(*sides[pairs[k][0]], *sides[pairs[k][1]]) for k in batch]).cpu()
    scores = torch.zeros(len(groups), 3)
    for row, part in enumerate(flat.split([len(group) for group in groups])):
        scores[row] = part.amax(0) if multi == "each" else part[part[:, 2].argmax()]
    if rescale is not None:
        scores = (scores - torch.tensor(rescale)) / (1 - torch.tensor(rescale))
    rows = [(h, *group) for h, group in zip(hypotheses, groups, strict=True)]
    truncated = [k for k, row in enumerate(rows) if any(encoded[text].truncated for text in row)]
    if truncated:
        warnings.warn(
            f"{len(truncated)} of {len(groups)} pairs are longer than this encoder reads; only "
            "the beginnings were compared: score shorter passages",
            stacklevel=2,
        )
    return BertScores(*scores.unbind(1), layer, idf, rescale, tuple(truncated))


def estimate_baseline(
    sentences: Sequence[str],
    encoder: Encoder | None = None,
    *,
    layer: int | None = None,
    pairs: int = 1000,
    seed: int = 0,
) -> Baseline:
    """Average the scores of random pairs of unrelated sentences: b in (x - b) / (1 - b)."""
    require_list(sentences, "sentences", "give several strings")
    different = list(dict.fromkeys(text_list(sentences, "sentence")))
    if len(different) < 2 or require_integer(pairs, "pairs", 0) < 1:
        raise ValueError(
            "a baseline needs at least 2 different sentences and 1 pair, "
            f"got {len(different)} and {pairs}"
        )
    generator = random.Random(seed)
    drawn = [generator.sample(different, 2) for _ in range(pairs)]
    scores = bert_score(*zip(*drawn, strict=True), encoder, layer=layer)
    return Baseline(*(x.mean().item() for x in (scores.precision, scores.recall, scores.f1)))


def _groups(hypotheses: Sequence[str], references: Sequence) -> list[Sequence[str]]:
    require_list(hypotheses, "hypotheses", "put one text into [ ]")
    require_list(references, "references", "put one text into [ ]")
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses and {len(references)} references: give each hypothesis "
            "its own, as a string or a list of strings"
        )
    groups = [[reference] if isinstance(reference, str) else reference for reference in references]
    for row, (hypothesis, group) in enumerate(zip(hypotheses, groups, strict=True)):
        if not isinstance(group, Sequence) or not all(isinstance(t, str) for t in group):
            raise TypeError(
                f"reference {row} must be a string or a list of strings, got {group!r:.80}"
            )
        require_string(hypothesis, f"hypothesis {row}")
        if not group:
            raise ValueError(f"hypothesis {row} has no reference; give it at least one")
    return groups
