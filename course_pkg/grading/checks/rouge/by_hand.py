"""The numbers of `rouge` that are worked by hand, on each student's own small case.

Chapter: exercises.
"""

from collections.abc import Callable, Sequence
from typing import Any

from course_pkg.metrics.ngrams import ngrams
from course_pkg.metrics.rouge.counts import f_measure
from course_pkg.metrics.rouge.lcs import lcs_length

from ...contract.questions import Misconception, Property, Question
from .scores import (
    NAMES,
    each,
    from_counts,
    mean,
    not_squared,
    reference_rouge_l,
    reference_rouge_n,
    shared,
    substring_length,
    wrong_side,
)

Case = dict[str, Any]
Numbers = Sequence[float]


def _question(
    name: str,
    expected: Callable[[Case], Numbers],
    names: Sequence[str],
    rtol: float,
    says: str,
    hint: str,
    wrong: dict[str, tuple[str, Callable[[Case], Numbers]]],
) -> Question:
    return Question(
        name=f"by-hand/{name}",
        expected=expected,
        compare=each(names, rtol=rtol),
        variant="by-hand",
        properties=(Property("value", 1, says, hint, cases=1),),
        misconceptions=tuple(
            Misconception(key, text, value, ("value",)) for key, (text, value) in wrong.items()
        ),
    )


def texts(case: Case) -> tuple[list[str], list[str]]:
    """The candidate's words and the reference's."""
    return case["candidate"].split(), case["reference"].split()


def _rouge_1(case: Case) -> Numbers:
    candidate, reference = texts(case)
    return reference_rouge_n(candidate, [reference], 1)


def _without(numbers: Numbers, f: Callable[[float, float], float]) -> Numbers:
    return numbers[0], numbers[1], f(numbers[0], numbers[1])


def _sets(case: Case) -> Numbers:
    candidate, reference = map(set, texts(case))
    return from_counts(len(candidate & reference), len(candidate), len(reference))


def bigram_counts(case: Case) -> Numbers:
    """The candidate's bigrams, the reference's, and what both have."""
    candidate, reference = (ngrams(words, 2) for words in texts(case))
    return len(candidate), len(reference), shared(candidate, reference)


def _with_gaps(case: Case) -> Numbers:
    """The candidate's bigrams that are in the reference with words between allowed."""
    candidate, reference = texts(case)
    found = sum(lcs_length(reference, pair) == 2 for pair in ngrams(candidate, 2))
    return len(candidate) - 1, len(reference) - 1, found


def rouge_l_numbers(case: Case) -> Numbers:
    """Precision, recall, F1 and Fβ of ROUGE-L."""
    return _all_f(case, reference_rouge_l(*texts(case), 1.0)[:2], f_measure)


def _all_f(case: Case, sides: Numbers, f: Callable[..., float]) -> Numbers:
    return *sides, f(*sides, 1.0), f(*sides, case["beta"])


def _rouge_l_with(case: Case, f: Callable[..., float]) -> Numbers:
    return _all_f(case, reference_rouge_l(*texts(case), 1.0)[:2], f)


def _substring(case: Case) -> Numbers:
    candidate, reference = texts(case)
    length = substring_length(candidate, reference)
    return _all_f(case, from_counts(length, len(candidate), len(reference))[:2], f_measure)


def _other(case: Case) -> tuple[list[str], list[str]]:
    return case["other"].split(), case["reference"].split()


def clipped_and_lcs(case: Case) -> Numbers:
    """The words that `other` shares with the reference, and their LCS."""
    other, reference = _other(case)
    return shared(other, reference), lcs_length(reference, other)


def _unclipped(case: Case) -> Numbers:
    other, reference = _other(case)
    return sum(word in reference for word in other), clipped_and_lcs(case)[1]


def _distinct(case: Case) -> Numbers:
    other, reference = _other(case)
    return len(set(other) & set(reference)), clipped_and_lcs(case)[1]


BY_HAND = (
    _question(
        "rouge-1",
        _rouge_1,
        NAMES,
        5e-3,
        "1a: precision, recall and F of ROUGE-1",
        "Count the words that both have. Of the candidate's words they are the precision, of the "
        "reference's the recall.",
        {
            "swapped": (
                "precision and recall have changed places: precision divides by the candidate's "
                "words, recall by the reference's",
                lambda c: _without(_rouge_1(c)[1::-1], f_measure),
            ),
            "sets": (
                "you counted different words; a word that occurs twice counts twice",
                _sets,
            ),
            "mean": (
                "F is here the arithmetic mean of precision and recall; it is the harmonic one",
                lambda c: _without(_rouge_1(c), mean),
            ),
            "half": (
                "you left out the factor 2 of F = 2PR/(P + R)",
                lambda c: _without(_rouge_1(c), lambda p, r: f_measure(p, r) / 2),
            ),
        },
    ),
    _question(
        "rouge-2",
        bigram_counts,
        ("bigrams of the candidate", "bigrams of the reference", "matches"),
        0.0,
        "1b: the bigrams of both texts, and those that match",
        "A bigram is a pair of neighbors: w words have w − 1. A match needs the same two words "
        "side by side in both texts.",
        {
            "words": (
                "you gave the numbers of words; w words have w − 1 bigrams",
                lambda c: [*map(len, texts(c)), bigram_counts(c)[2]],
            ),
            "with-gaps": (
                "you let other words stand between the two; those are skip-bigrams, of ROUGE-S",
                _with_gaps,
            ),
            "words-shared": (
                "you counted the words that match; here it is the pairs of neighbors",
                lambda c: [*bigram_counts(c)[:2], shared(*texts(c))],
            ),
            "swapped": (
                "the bigrams of the reference and of the candidate have changed places",
                lambda c: [*bigram_counts(c)[1::-1], bigram_counts(c)[2]],
            ),
        },
    ),
    _question(
        "rouge-l",
        rouge_l_numbers,
        ("precision", "recall", "F at β = 1", "F at your β"),
        5e-3,
        "1c: precision, recall and F of ROUGE-L, at β = 1 and at your β",
        "Find the longest series of words that both have in this order. F is (1 + β²)PR over "
        "R + β²P.",
        {
            "substring": (
                "you took the longest run of neighbors; in a subsequence, words may be left out",
                _substring,
            ),
            "swapped": (
                "precision and recall have changed places: precision divides by the candidate's "
                "length, recall by the reference's",
                lambda c: _all_f(c, rouge_l_numbers(c)[1::-1], f_measure),
            ),
            "not-squared": (
                "you took β where the formula has β²",
                lambda c: _rouge_l_with(c, not_squared),
            ),
            "wrong-side": (
                "β² stands beside the recall; in the denominator it multiplies the precision: "
                "R + β²P",
                lambda c: _rouge_l_with(c, wrong_side),
            ),
            "mean": (
                "F is here an arithmetic mean of precision and recall; it is a harmonic one",
                lambda c: _rouge_l_with(c, lambda p, r, b: (p + b * b * r) / (1 + b * b)),
            ),
            "plain-mean": (
                "F is here the arithmetic mean of precision and recall; it is a harmonic one, in "
                "which β counts",
                lambda c: _rouge_l_with(c, lambda p, r, b: mean(p, r)),
            ),
        },
    ),
    _question(
        "clipping-and-order",
        clipped_and_lcs,
        ("matches", "length of the subsequence"),
        0.0,
        "1d: the matches of ROUGE-1 and the longest common subsequence of the other candidate",
        "A word counts as often as in the text that has fewer of it. A subsequence keeps the order "
        "of both texts.",
        {
            "unclipped": (
                "you counted every word that occurs in the reference; one that the candidate has "
                "more often than the reference counts only as often as there",
                _unclipped,
            ),
            "distinct": (
                "you counted different words; a word that both have twice counts twice",
                _distinct,
            ),
            "order-ignored": (
                "your subsequence has all matching words; it keeps only those that stand in the "
                "same order in both texts",
                lambda c: [clipped_and_lcs(c)[0]] * 2,
            ),
            "substring": (
                "your subsequence is the longest run of neighbors; words may be left out",
                lambda c: [clipped_and_lcs(c)[0], substring_length(*_other(c))],
            ),
        },
    ),
)
