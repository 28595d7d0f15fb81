"""Pairs of sentences that differ only in whom they are about: scores, and which sentence wins.

The contrasts are harmless: animals, hobbies, jobs, and invented names without any association.
Sources: Nangia et al. 2020, "CrowS-Pairs" (arXiv 2010.00133), section 2; lm-eval (crows_pairs).
"""

import json
import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib import resources
from typing import Literal

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_choice, require_list
from course_pkg.evaluation.continuation_scores import score_continuations
from course_pkg.evaluation.statistics import Interval, mean_interval, score_array
from course_pkg.lm.smollm2 import END_OF_DOCUMENT
from course_pkg.studies.likelihood_and_generation.intervals import bootstrap_interval

Kind = Literal["association", "invented"]
KINDS = ("association", "invented")
# How a sentence begins; "reversed" names the group last.
WORDINGS = {
    "plain": "{Group} {predicate}.",
    "reported": "My neighbor told me that {group} {predicate}.",
    "known": "It is well known that {group} {predicate}.",
    "reversed": "They {predicate}. They must be {group}.",
}


@dataclass(frozen=True)
class Contrast:
    """Two words, and for each the predicates that fit it."""

    id: str
    kind: Kind
    words: tuple[str, str]
    predicates: tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class SentencePair:
    """Two sentences that differ in one word or name; `more` has the associated one.

    direction: 0 if `more` has the contrast's first word, else 1. group: the contrast's id.
    """

    more: str
    less: str
    direction: int
    group: str


def load_contrasts(kind: str) -> list[Contrast]:
    """The course's contrasts of a kind: "association" or "invented", 12 each."""
    require_choice(kind, "kind", KINDS)
    path = resources.files("course_pkg") / "data/evaluation/bias-contrasts.jsonl"
    rows = map(json.loads, path.read_text("utf-8").splitlines())
    return [
        Contrast(row["id"], row["kind"], tuple(row["words"]), tuple(map(tuple, row["predicates"])))
        for row in rows
        if row["kind"] == kind
    ]


def sentence_pairs(contrasts: Iterable[Contrast], wording: str = "plain") -> list[SentencePair]:
    """The pairs of all contrasts, one for each predicate, in a wording of `WORDINGS`."""
    require_choice(wording, "wording", WORDINGS)
    pairs = []
    for contrast in contrasts:
        for direction, predicates in enumerate(contrast.predicates):
            for predicate in predicates:
                more, less = (
                    _sentence(wording, contrast.words[number], predicate)
                    for number in (direction, 1 - direction)
                )
                pairs.append(SentencePair(more, less, direction, contrast.id))
    return pairs


def _sentence(wording: str, group: str, predicate: str) -> str:
    capitalized = group[0].upper() + group[1:]
    return WORDINGS[wording].format(group=group, Group=capitalized, predicate=predicate)


@dataclass(frozen=True)
class StereotypeShare:
    """How often, and by how much, the associated sentence is preferred.

    Attributes:
        share: of all pairs (lm-eval's pct_stereotype); ties count as not preferred.
        mean_difference: in nats, with an interval by bootstrap of groups.
        likelihood_diff: the mean absolute difference, in nats (lm-eval's name).
    """

    share: Interval
    mean_difference: Interval
    likelihood_diff: float
    ties: int
    pairs: int


def stereotype_share(differences: Sequence[float], groups: Sequence[Hashable]) -> StereotypeShare:
    """The share of pairs with a difference `more` - `less` above 0, with an interval by groups."""
    values = score_array(differences, "differences")
    preferred = (values > 0).astype(int).tolist()
    return StereotypeShare(
        share=mean_interval(preferred, groups),
        mean_difference=bootstrap_interval(
            lambda drawn: float(values[drawn].mean()), len(values), groups=groups
        ),
        likelihood_diff=float(np.abs(values).mean()),
        ties=int((values == 0).sum()),
        pairs=len(values),
    )


def direction_gap(
    differences: Sequence[float], directions: Sequence[int], groups: Sequence[Hashable]
) -> Interval:
    """Share preferred of the pairs of direction 0, minus that of direction 1: a word's own pull.

    0 if only the association decides; 1 if the first word always wins.
    """
    preferred = score_array(differences, "differences") > 0
    sides = np.asarray(directions)
    if sides.shape != preferred.shape or not np.isin(sides, (0, 1)).all():
        raise ValueError("directions must be 0 or 1 for each pair, in the order of differences")
    if len({(g, int(s)) for g, s in zip(groups, sides, strict=True)}) != 2 * len(set(groups)):
        raise ValueError("each group needs pairs of both directions: leave the others out")

    def gap(drawn: np.ndarray) -> float:
        won, side = preferred[drawn], sides[drawn]
        return float(won[side == 0].mean() - won[side == 1].mean())

    return bootstrap_interval(gap, len(preferred), groups=groups)


Way = Literal["sentence", "token", "shared"]
WAYS = ("sentence", "token", "shared")


@dataclass(frozen=True)
class SentenceScore:
    """A sentence's tokens, their natural-log probabilities, and which are shared, each (n,).

    >>> score = SentenceScore(("Cats", " purr"), (-5.0, -2.0), (False, True))
    >>> [score.total(way) for way in WAYS]
    [-7.0, -3.5, -2.0]
    """

    tokens: tuple[str, ...]
    log_probs: tuple[float, ...]
    shared: tuple[bool, ...]

    def total(self, way: Way) -> float:
        """The sum over all tokens ("sentence"), its mean ("token"), or the sum over shared ones."""
        require_choice(way, "way", WAYS)
        if way == "shared":
            return math.fsum(x for x, both in zip(self.log_probs, self.shared, strict=True) if both)
        total = math.fsum(self.log_probs)
        return total / len(self.log_probs) if way == "token" else total


@dataclass(frozen=True)
class PairScore:
    """The scores of a pair's two sentences."""

    more: SentenceScore
    less: SentenceScore

    def difference(self, way: Way) -> float:
        """Score of `more` minus score of `less`: above 0 if the association is preferred.

        For "shared", what both sentences begin with is left out, because it cancels. So the
        difference is exactly 0, a tie, if the word that differs is last.
        """
        if require_choice(way, "way", WAYS) != "shared":
            return self.more.total(way) - self.less.total(way)
        sides = (self.more, self.less)
        begin = min((*side.shared, False).index(False) for side in sides)
        more, less = (
            SentenceScore(side.tokens[begin:], side.log_probs[begin:], side.shared[begin:])
            for side in sides
        )
        return more.total(way) - less.total(way)


def shared_positions(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """The positions of the tokens that two sequences share, in order: (in first, in second)."""
    # autojunk would drop frequent tokens of sequences of 200 and more.
    blocks = SequenceMatcher(None, list(first), list(second), autojunk=False).get_matching_blocks()
    return [(a + k, b + k) for a, b, size in blocks for k in range(size)]


def score_pairs(
    model: nn.Module, tokenizer: Tokenizer, pairs: Sequence[SentencePair]
) -> list[PairScore]:
    """Score both sentences of each pair, every token given all tokens before it.

    Each follows the token that ends a document, so that its first token is scored too.
    """
    if not require_list(pairs, "pairs", "give a list of SentencePair"):
        raise ValueError("pairs is empty: give at least one SentencePair")
    start = _document_start(tokenizer)
    texts = [text for pair in pairs for text in (pair.more, pair.less)]
    sequences = [[start, *tokenizer(text, add_special_tokens=False).input_ids] for text in texts]
    scores = score_continuations(model, sequences, [1] * len(sequences))

    def scored(at: int, shared: Collection[int]) -> SentenceScore:
        tokens = tuple(tokenizer.decode([token]) for token in sequences[at][1:])
        return SentenceScore(
            tokens, scores[at].log_probs, tuple(place in shared for place in range(len(tokens)))
        )

    pair_scores = []
    for at in range(0, len(sequences), 2):
        both = shared_positions(sequences[at][1:], sequences[at + 1][1:])
        more = {place for place, _ in both}
        less = {place for _, place in both}
        pair_scores.append(PairScore(scored(at, more), scored(at + 1, less)))
    return pair_scores


def _document_start(tokenizer: Tokenizer) -> int:
    token = tokenizer.get_vocab().get(END_OF_DOCUMENT, tokenizer.bos_token_id)
    token = tokenizer.eos_token_id if token is None else token
    if token is None:
        raise ValueError("the tokenizer has no token to begin a text: it needs a BOS or an EOS")
    return token
