"""Match the tokens of two texts by the cosines of their vectors: the core of BERTScore.

Each token matches the token of the other text whose vector has the largest cosine with its own,
including [CLS] and [SEP], as in the authors' code; in the means those two have weight 0.
Source: Zhang et al. 2020, section 3. Chapter: metrics/bertscore.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from course_pkg.lm.encoder import Encoder, TokenVectors, load_encoder, token_vectors


class IdfWeights(NamedTuple):
    """The idf weight of each token id in the references; `unseen` is the weight of all others."""

    weights: dict[int, float]
    unseen: float


@dataclass(frozen=True)
class TokenMatches:
    """How the tokens of two texts match.

    Attributes:
        similarity: cosines, (hypothesis tokens, reference tokens).
        best_reference: for each hypothesis token the position of the reference token that it
            matches; best_hypothesis is the reverse.
    """

    hypothesis: tuple[str, ...]
    reference: tuple[str, ...]
    similarity: Tensor
    best_reference: tuple[int, ...]
    best_hypothesis: tuple[int, ...]
    hypothesis_weights: Tensor
    reference_weights: Tensor


def token_matches(
    hypothesis: str,
    reference: str,
    encoder: Encoder | None = None,
    *,
    layer: int | None = None,
    idf: bool | IdfWeights = False,
) -> TokenMatches:
    """Compute the cosines between the tokens of two texts, and which token each one matches.

    Arguments as for `bert_score`, but idf must be False or weights.

    >>> matches = token_matches("a cat", "the cat")
    >>> matches.hypothesis[2], matches.reference[matches.best_reference[2]]
    ('cat', 'cat')
    """
    if idf is True:
        raise ValueError("idf=True needs many references: pass idf_weights(references)")
    encoder = load_encoder() if encoder is None else encoder
    sides = token_vectors(encoder, [hypothesis, reference], layer=layer)
    tokens = [tuple(encoder.tokenizer.convert_ids_to_tokens(side.ids.tolist())) for side in sides]
    cosines = (unit_vectors(sides[0]) @ unit_vectors(sides[1]).T).cpu()
    return TokenMatches(
        *tokens,
        cosines,
        tuple(cosines.argmax(1).tolist()),
        tuple(cosines.argmax(0).tolist()),
        *(token_weights(side, idf).cpu() for side in sides),
    )


def idf_weights(references: Sequence[str], encoder: Encoder | None = None) -> IdfWeights:
    """Weight each token by ln((N + 1) / (n + 1)), where n of the N references contain it.

    A token that no reference contains gets ln(N + 1). The + 1 comes from the authors' code.

    >>> round(idf_weights(["a cat", "a dog", "a cow"]).unseen, 3)
    1.386
    """
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


def token_weights(text: TokenVectors, idf: bool | IdfWeights) -> Tensor:
    """The weight of each token in its text's mean, (n,), adding up to 1; 0 for [CLS] and [SEP].

    If all idf weights of a text are 0, its tokens have equal weights. A text that has only special
    tokens gets zeros.
    """
    weights = (~text.special).float()
    if idf is not False:
        values = [idf.weights.get(token, idf.unseen) for token in text.ids.tolist()]
        weighted = weights * torch.tensor(values)
        weights = weighted if weighted.sum() > 0 else weights
    return (weights / weights.sum().clamp(min=1e-12)).to(text.vectors.device)


def pair_scores(batch: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Tensor:
    """Compute P, R and F of each pair of texts, (batch, 3).

    Pads are masked with -inf; a 0 would be larger than a negative cosine. A text without tokens
    scores 0. F is 0 where P or R is not positive. Source: Zhang et al. 2020, section 3.

    Args:
        batch: unit vectors (n, width) and weights (n,) of a hypothesis, then of a reference.
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
