"""The numbers of `bleu` that are worked by hand on a case with two references."""

from typing import Any

from ...contract.compare import number
from . import methods
from .by_hand import FOUR_DECIMALS, Case, by_hand, matches, right, words
from .rows import by_order, row


def _triple(**fault: str) -> Any:
    def triple(case: Case) -> tuple[float, float, float]:
        candidate, references = words(case)
        c, lengths = len(candidate), [len(reference) for reference in references]
        r = methods.reference_length(c, lengths, fault.get("length", "closest"))
        bp = methods.penalty(c, r, fault.get("brevity", "standard"))
        return r, bp, methods.bleu([candidate], [references], **fault)

    return triple


def _right_triple(case: Case) -> tuple[int, float, float]:
    score = right(case)
    return score.reference_length, score.brevity_penalty, score.score


TWO_REFERENCES = (
    by_hand(
        "clipping",
        "two-references",
        lambda c: list(right(c).matches),
        by_order(number()),
        "2a: the clipped matches for n = 1 to 4",
        "An n-gram counts at most as often as the one reference has it that has it most often.",
        {
            "unclipped": (
                "you counted every n-gram that a reference has, as often as the candidate repeats "
                "it; it counts at most as often as a reference has it",
                lambda c: matches(c, clip="unclipped"),
            ),
            "sum": (
                "you clipped by the sum over the references; it is the maximum over them",
                lambda c: matches(c, clip="sum"),
            ),
            "first": (
                "you looked at the first reference only",
                lambda c: matches(c, clip="first"),
            ),
            "types": (
                "you counted each n-gram once; one that a reference has twice may count twice",
                lambda c: matches(c, clip="types"),
            ),
            "p3-zero": (
                "you gave up after the bigrams; a run of three words does stand in a reference",
                lambda c: [*right(c).matches[:2], 0, 0],
            ),
        },
    ),
    by_hand(
        "two-references",
        "two-references",
        _right_triple,
        row(
            {"reference length": number(), "brevity penalty": FOUR_DECIMALS, "BLEU": FOUR_DECIMALS}
        ),
        "2b: the reference length that counts, the brevity penalty, and BLEU",
        "The reference whose length is closest to the candidate's gives r. BLEU is the penalty "
        "times the fourth root of the product of the four precisions.",
        {
            "above-one": (
                "you took the shortest reference and applied exp(1 − r/c) although c > r; r is the "
                "length of the closest one, and a penalty is never above 1",
                _triple(length="shortest", brevity="always"),
            ),
            "shortest": (
                "you took the shortest reference; the one with the closest length counts",
                _triple(length="shortest"),
            ),
            "mean-length": (
                "you took the mean of the reference lengths; the closest one counts",
                _triple(length="mean"),
            ),
            "inverted": (
                "you took exp(1 − c/r), which is above 1 for a short text; it is exp(1 − r/c)",
                _triple(brevity="inverted"),
            ),
            "no-penalty": (
                "you took no penalty; the closest reference is longer than the candidate",
                _triple(brevity="none"),
            ),
            "arithmetic": (
                "you took the arithmetic mean of the precisions; BLEU takes the geometric one",
                _triple(average="arithmetic"),
            ),
            "no-root": (
                "you multiplied the precisions and took no fourth root",
                _triple(average="product"),
            ),
            "unclipped": (
                "your score comes from unclipped counts",
                _triple(clip="unclipped"),
            ),
            "sum": (
                "your score comes from counts that were clipped by the sum over the references",
                _triple(clip="sum"),
            ),
        },
    ),
)
