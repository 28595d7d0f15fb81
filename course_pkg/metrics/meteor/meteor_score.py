"""METEOR: words matched by form, stem or synonym, with a penalty for scattered matches::

    P = sum w m_h / |h|      R = sum w m_r / |r|      F_mean = P R / (alpha P + (1 - alpha) R)
    penalty = gamma (chunks / m) ** beta              score  = F_mean (1 - penalty)

m is the number of matched words, w the weight of a match, which depends on its stage. Not included:
paraphrase tables, and the Java tool's tokenizer and stemmer (here all versions use Porter's).

Sources: Banerjee & Lavie 2005, section 2; Denkowski & Lavie 2014, "Meteor Universal", section 2.
"""

import math
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from course_pkg.common.arguments import require_between, require_choice, require_number, text_list
from course_pkg.metrics.meteor.alignment import (
    STAGES,
    Alignment,
    MatchedPair,
    best_alignment,
    match_candidates,
)
from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.text_files import ScoredTexts
from course_pkg.metrics.tokenizers import tokenize as split_words
from course_pkg.metrics.wordnet import Synonyms, SynonymSets, open_wordnet

LONGEST = 2000  # words in a text; METEOR compares sentences


@dataclass(frozen=True)
class MeteorParameters:
    """The parameters that differ between versions of METEOR (Denkowski & Lavie 2014, section 2).

    Attributes:
        alpha: weight of recall in F_mean, 0 to 1 (it multiplies P in the denominator).
        beta, gamma: the penalty's exponent and its largest value.
        weights: of an exact match, a stem and a synonym.
        delta: weight of a content word; a function word has 1 - delta (None: all words are equal).
        staged: match exact words first, then stems, then synonyms; otherwise all jointly.
        free_copy: no penalty for a hypothesis that matches the whole reference in one chunk.
    """

    alpha: float
    beta: float
    gamma: float
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    delta: float | None = None
    staged: bool = True
    free_copy: bool = False

    def __post_init__(self) -> None:
        shares = {"alpha": self.alpha, "gamma": self.gamma, "delta": self.delta or 0.0}
        if len(self.weights) != len(STAGES):
            raise ValueError(f"weights must be one for each of {STAGES}, got {self.weights}")
        shares |= dict(zip(STAGES, self.weights, strict=True))
        for name, value in shares.items():
            if not 0 <= require_number(value, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {value}")
        require_between(self.beta, "beta", 0, math.inf)


# 2005: the paper's equations. 1.5: the Java tool's constants for English, whose default task is
# "rank" (PARAM_RANK and WEIGHT_RANK in its Constants.java).
PARAMETERS = {
    "2005": MeteorParameters(alpha=0.9, beta=3.0, gamma=0.5),
    "1.5": MeteorParameters(
        alpha=0.85,
        beta=0.2,
        gamma=0.6,
        weights=(1.0, 0.6, 0.8),
        delta=0.75,
        staged=False,
        free_copy=True,
    ),
}


@dataclass(frozen=True)
class MeteorScore:
    """A METEOR score and what it was computed from; optimal: whether its alignment is the best."""

    score: float
    precision: float
    recall: float
    fmean: float
    penalty: float
    chunks: int
    matches: tuple[MatchedPair, ...]
    hypothesis: tuple[str, ...]
    reference: tuple[str, ...]
    optimal: bool
    stages: tuple[str, ...] = STAGES


def meteor(
    hypothesis: str,
    references: str | Iterable[str],
    *,
    version: str | MeteorParameters = "2005",
    stem: bool = True,
    synonyms: str | Synonyms | Iterable[Iterable[str]] | None = "wordnet",
    function_words: Collection[str] = (),
    tokenize: str = "13a",
    lowercase: bool = True,
) -> MeteorScore:
    """Compute METEOR of one hypothesis; with several references, the best score counts.

    Args:
        version: "2005", "1.5", or your own parameters.
        stem: also match words with the same Porter stem.
        synonyms: "wordnet" (with a warning if it is not installed), sets of words such as
            [{"car", "automobile"}], any `wordnet.Synonyms`, or None.
        function_words: lower-case words with weight 1 - delta, if the version has a delta.
    """
    parameters = version
    if not isinstance(version, MeteorParameters):
        parameters = PARAMETERS[require_choice(version, "version", PARAMETERS)]
    if isinstance(function_words, str) or not isinstance(function_words, Collection):
        raise TypeError(f"function_words must be a set of words, got {function_words!r:.80}")
    texts = [
        tuple(split_words(text, tokenize))
        for text in (hypothesis, *text_list(references, "reference"))
    ]
    if lowercase:
        texts = [tuple(word.lower() for word in text) for text in texts]
    if (longest := max(map(len, texts))) > LONGEST:
        raise ValueError(
            f"a text has {longest} words, but at most {LONGEST} are allowed: METEOR compares "
            "sentences, so score the sentences one by one and average the scores"
        )
    source = _source(synonyms)
    stages = tuple(stage for stage, used in zip(STAGES, (True, stem, source), strict=True) if used)
    scores = []
    for reference in texts[1:]:
        candidates = match_candidates(texts[0], reference, stem, source)
        alignment = best_alignment(candidates, staged=parameters.staged)
        score = _score(texts[0], reference, alignment, parameters, function_words)
        scores.append(replace(score, stages=stages))
    return max(scores, key=lambda score: score.score)


def f_mean(precision: float, recall: float, alpha: float) -> float:
    """Compute P R / (alpha P + (1 - alpha) R), a harmonic mean that weighs R by alpha.

    alpha = 0.9 gives 10 P R / (R + 9 P). Source: Banerjee & Lavie 2005, section 2.

    >>> round(f_mean(1.0, 0.5, 0.9), 4), round(f_mean(0.5, 1.0, 0.9), 4)
    (0.5263, 0.9091)
    """
    if precision == 0 or recall == 0:
        return 0.0
    return precision * recall / (alpha * precision + (1 - alpha) * recall)


def _source(synonyms: str | Synonyms | Iterable[Iterable[str]] | None) -> Synonyms | None:
    if synonyms == "wordnet":
        wordnet = open_wordnet()
        if wordnet is None:
            warnings.warn(
                "WordNet is not installed, so synonyms do not match: install the system package "
                "wordnet-base or NLTK's data, or pass synonyms=None or your own sets",
                stacklevel=3,
            )
        return wordnet
    if isinstance(synonyms, str):
        raise ValueError(f'synonyms must be "wordnet", sets of words or None, got {synonyms!r}')
    if synonyms is None or hasattr(synonyms, "senses"):
        return synonyms
    if not isinstance(synonyms, Iterable):
        raise TypeError(f'synonyms must be "wordnet", sets of words or None, got {synonyms!r:.80}')
    return SynonymSets(synonyms)


def _score(
    hypothesis: tuple[str, ...],
    reference: tuple[str, ...],
    alignment: Alignment,
    parameters: MeteorParameters,
    function_words: Collection[str],
) -> MeteorScore:
    delta = 0.5 if parameters.delta is None else parameters.delta

    def word_weight(word: str) -> float:
        return 1 - delta if word in function_words else delta

    matched = {"hypothesis": 0.0, "reference": 0.0}
    for match in alignment.matches:
        weight = parameters.weights[STAGES.index(match.stage)]
        matched["hypothesis"] += weight * word_weight(hypothesis[match.hypothesis])
        matched["reference"] += weight * word_weight(reference[match.reference])
    precision = matched["hypothesis"] / (sum(map(word_weight, hypothesis)) or 1.0)
    recall = matched["reference"] / (sum(map(word_weight, reference)) or 1.0)
    count = len(alignment.matches)
    whole = count == len(hypothesis) == len(reference) and alignment.chunks == 1
    free = not count or (parameters.free_copy and whole)
    fragmentation = 0.0 if free else alignment.chunks / count
    fmean = f_mean(precision, recall, parameters.alpha)
    penalty = parameters.gamma * fragmentation**parameters.beta
    return MeteorScore(
        score=fmean * (1 - penalty),
        precision=precision,
        recall=recall,
        fmean=fmean,
        penalty=penalty,
        chunks=alignment.chunks,
        matches=alignment.matches,
        hypothesis=hypothesis,
        reference=reference,
        optimal=alignment.optimal,
    )


def _score_system(
    texts: ScoredTexts,
    *,
    version: Annotated[Literal["2005", "1.5"], MetricOption("The parameters.")] = "2005",
    no_synonyms: Annotated[
        bool, MetricOption("Match words and stems only, without WordNet.")
    ] = False,
) -> SystemScores:
    synonyms = None if no_synonyms else "wordnet"
    results = [
        meteor(text, group, version=version, synonyms=synonyms)
        for text, group in zip(texts.hypotheses, texts.references, strict=True)
    ]
    return SystemScores(
        {"meteor": [result.score for result in results]},
        {"params": version, "synonyms": "synonym" in results[0].stages},
    )


METEOR = Metric(
    "meteor",
    "METEOR",
    """METEOR of a system: the mean over its texts, from 0 to 1.

    With version 2005, nltk's formula; where nltk aligns greedily, this finds the best alignment.

    Examples:

        course score meteor ref.txt -i system.txt --no-synonyms
        course score meteor -i system.jsonl --version 1.5 --no-synonyms -sl
    """,
    _score_system,
    {"meteor": lambda answer, reference: meteor(answer, reference).score},
)
