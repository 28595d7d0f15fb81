"""`rouge/several`: ROUGE-N against several references, the best one or all of them pooled.

Chapter: exercises.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from course_pkg.metrics.ngrams import clipped_matches, count

from ...contract.questions import Misconception, Property, Question
from .scores import NAMES, Scores, each, from_counts, mixed, reference_rouge_n, shared, some

Inputs = dict[str, Any]


def draw_several(rule: str) -> Any:
    """Three or four references for one candidate, and `rule`; no word repeats within a text.

    Each reference has a run of the candidate among words of its own. The one with the whole
    candidate is the longest by far, and best in precision; a short one is best in recall; the
    best in F is a third, and never the first. In the fourth case there is only one reference, in
    the last nothing matches.
    """

    def draw(rng: np.random.Generator, size: int) -> Inputs:
        n = 1 + size % 2
        candidate, new = some(rng, 6 + size, 12)
        length = len(candidate)
        if size > 2:
            kinds = [(length - 1, 2)] if size == 3 else [(0, 3), (0, 5)]
            references = [_reference(rng, candidate, new[:own], run) for run, own in kinds]
            return {"candidate": candidate, "references": references, "n": n, "rule": rule}
        long, short = (length, int(rng.integers(8, 12))), (n + 1, 0)
        good, poor = (length - 1, int(rng.integers(1, 3))), (n + 1, int(rng.integers(5, 7)))
        kinds = (
            [poor, *mixed(rng, [long, short, good])] if size else [long, *mixed(rng, [short, good])]
        )
        references = [_reference(rng, candidate, mixed(rng, new)[:own], run) for run, own in kinds]
        drawn = {"candidate": candidate, "references": references, "n": n, "rule": rule}
        return {**drawn, "leave_unchanged": True} if rule == "best" else drawn

    return draw


def _reference(
    rng: np.random.Generator, candidate: list[str], own: list[str], length: int
) -> list[str]:
    """A run of so many words of the candidate, somewhere among words of the reference's own."""
    start, cut = (int(rng.integers(n + 1)) for n in (len(candidate) - length, len(own)))
    return [*own[:cut], *candidate[start : start + length], *own[cut:]]


def _overlaps(inputs: Inputs) -> list[tuple[int, int, int]]:
    """Matches, n-grams of the candidate and of the reference, for each reference."""
    mine = count(inputs["candidate"], inputs["n"])
    theirs = [count(reference, inputs["n"]) for reference in inputs["references"]]
    return [(clipped_matches(mine, yours), mine.total(), yours.total()) for yours in theirs]


def _each_score(inputs: Inputs) -> list[Scores]:
    return [from_counts(*counts) for counts in _overlaps(inputs)]


def _columns(inputs: Inputs, combine: Callable[[Sequence[float]], float]) -> Scores:
    return tuple(combine(column) for column in zip(*_each_score(inputs), strict=True))


def _average(inputs: Inputs) -> Scores:
    return _columns(inputs, lambda column: sum(column) / len(column))


def _concatenated(inputs: Inputs) -> Scores:
    """All references taken for one, so that a word of the candidate matches only once."""
    grams = [gram for reference in inputs["references"] for gram in count(reference, inputs["n"])]
    mine = list(count(inputs["candidate"], inputs["n"]))
    return from_counts(shared(mine, grams), len(mine), len(grams))


def _candidate_once(inputs: Inputs) -> Scores:
    matches, candidate, reference = map(sum, zip(*_overlaps(inputs), strict=True))
    return from_counts(matches, candidate // len(inputs["references"]), reference)


def expected_several(inputs: Inputs) -> Scores:
    """ROUGE-N of the package, by the rule of the case."""
    return reference_rouge_n(*(inputs[k] for k in ("candidate", "references", "n", "rule")))


SEVERAL = Question(
    name="several",
    expected=expected_several,
    compare=each(NAMES),
    properties=(
        Property(
            "best",
            2,
            "“best”: all three numbers of the one reference with the highest F",
            "Score each reference by itself; then take the tuple whose F is largest, as it is. "
            "There may be one reference only, and the list of them stays as it is.",
            draw_several("best"),
            cases=5,
        ),
        Property(
            "pooled",
            2,
            "“pooled”: matches and n-grams are added up over the references, and then divided",
            "Sum the matches, sum the references' n-grams, and count the candidate's n-grams once "
            "for each reference. Without a match all three numbers are 0.",
            draw_several("pooled"),
            cases=5,
        ),
    ),
    misconceptions=(
        Misconception(
            "average",
            "you took the average over the references",
            _average,
            ("best", "pooled"),
            sometimes_right=True,
        ),
        Misconception(
            "first",
            "you scored the first reference alone",
            lambda i: _each_score(i)[0],
            ("best", "pooled"),
            sometimes_right=True,
        ),
        Misconception(
            "best-recall",
            "you took the reference with the highest recall; here the highest F decides",
            lambda i: max(_each_score(i), key=lambda score: score[1]),
            ("best",),
            sometimes_right=True,
        ),
        Misconception(
            "best-precision",
            "you took the reference with the highest precision; here the highest F decides",
            lambda i: max(_each_score(i)),
            ("best",),
            sometimes_right=True,
        ),
        Misconception(
            "each-best",
            "you took the best precision, the best recall and the best F each by itself; they must "
            "come from one reference",
            lambda i: _columns(i, max),
            ("best",),
            sometimes_right=True,
        ),
        Misconception(
            "pooled",
            "you pooled the references; the rule asked for is “best”",
            lambda i: expected_several({**i, "rule": "pooled"}),
            ("best",),
            sometimes_right=True,
        ),
        Misconception(
            "best",
            "you took the best reference; the rule asked for is “pooled”",
            lambda i: expected_several({**i, "rule": "best"}),
            ("pooled",),
            sometimes_right=True,
        ),
        Misconception(
            "concatenated",
            "you put the references together into one; pooled, an n-gram of the candidate can "
            "match once in every reference",
            _concatenated,
            ("pooled",),
            sometimes_right=True,
        ),
        Misconception(
            "candidate-once",
            "you divided the matches of all references by the candidate's n-grams counted once; "
            "so precision could rise above 1",
            _candidate_once,
            ("pooled",),
            sometimes_right=True,
        ),
    ),
)
