"""The numbers of `bleu` that are worked by hand on a case with one reference.

Chapter: exercises.
"""

from collections.abc import Callable
from typing import Any

from course_pkg.metrics.bleu.score import BleuScore, sentence_bleu

from ...contract.compare import Comparator, number
from ...contract.questions import Misconception, Property, Question
from . import methods
from .rows import MATCHES_AND_TOTALS, row

Case = dict[str, Any]
FOUR_DECIMALS = number(rtol=5e-4)


def by_hand(
    name: str,
    variant: str,
    expected: Callable[[Case], Any],
    compare: Comparator,
    says: str,
    hint: str,
    wrong: dict[str, tuple[str, Callable[[Case], Any]]],
) -> Question:
    """A question of one point on a variant. wrong: name -> what is said, what it gives."""
    return Question(
        name=f"by-hand/{name}",
        expected=expected,
        compare=compare,
        variant=variant,
        properties=(Property("value", 1, says, hint, cases=1),),
        misconceptions=tuple(
            Misconception(key, text, value, ("value",)) for key, (text, value) in wrong.items()
        ),
    )


def right(case: Case, smoothing: str = "none") -> BleuScore:
    """The reference's BLEU of a case, of all four orders."""
    references = case.get("references") or [case["reference"]]
    return sentence_bleu(
        case["candidate"],
        references,
        smoothing=smoothing,
        tokenize="whitespace",
        effective_order=False,
    )


def counts(case: Case) -> list[tuple[int, int]]:
    """Matches and totals of a case, order by order."""
    score = right(case)
    return list(zip(score.matches, score.totals, strict=True))


def words(case: Case) -> tuple[list[str], list[list[str]]]:
    """The candidate and the references of a case, cut into words."""
    references = case.get("references") or [case["reference"]]
    return case["candidate"].split(), [reference.split() for reference in references]


def matches(case: Case, **fault: str) -> list[int]:
    """The matches of the four orders, with a fault."""
    candidate, references = words(case)
    return [methods.matches(candidate, references, n, **fault) for n in methods.ORDERS]


def _of_reference(case: Case) -> list[tuple[int, int]]:
    _, (reference,) = words(case)
    return [(m, methods.total(reference, n)) for n, m in enumerate(matches(case), 1)]


def _p3_zero(case: Case) -> list[tuple[int, int]]:
    return [(m if n < 3 else 0, out_of) for n, (m, out_of) in enumerate(counts(case), 1)]


def both_ways(case: Case, rule: str = "standard") -> tuple[float, float]:
    """The penalty of the candidate against the reference, and the other way round, by a rule."""
    candidate, (reference,) = words(case)
    c, r = len(candidate), len(reference)
    return methods.penalty(c, r, rule), methods.penalty(r, c, rule)


def _both_ways(case: Case) -> tuple[float, float]:
    swapped = {"candidate": case["reference"], "reference": case["candidate"]}
    return right(case).brevity_penalty, right(swapped).brevity_penalty


def _letters(case: Case) -> tuple[float, float]:
    return methods.penalty(len(case["candidate"]), len(case["reference"])), 1.0


def _scores(average: str = "geometric", brevity: str = "standard", smoothing: str = "exp") -> Any:
    def pair(case: Case) -> tuple[float, float]:
        candidate, (reference,) = words(case)
        bp = methods.penalty(len(candidate), len(reference), brevity)
        plain, smoothed = (methods.smooth(counts(case), rule) for rule in ("none", smoothing))
        return bp * methods.mean(plain, average), bp * methods.mean(smoothed, average)

    return pair


ONE_REFERENCE = (
    by_hand(
        "counts",
        "one-reference",
        counts,
        MATCHES_AND_TOTALS,
        "1a: matches and number of n-grams for n = 1 to 4",
        "Write down the candidate's n-grams, c − n + 1 of them, and tick those that the reference "
        "has too. The n words must be neighbors in both.",
        {
            "of-the-reference": (
                "you divided by the number of n-grams in the reference; BLEU is a precision, so "
                "the candidate's are counted",
                _of_reference,
            ),
            "length-of-text": (
                "you divided by the number of words for every n; there are only c − n + 1 n-grams",
                lambda c: [(m, len(c["candidate"].split())) for m in right(c).matches],
            ),
            "p3-zero": (
                "you gave up after the bigrams; a run of three words does stand in both texts",
                _p3_zero,
            ),
            "gaps": (
                "you let words of the reference be skipped; the words of an n-gram are neighbors",
                lambda c: list(zip(matches(c, cut="gaps"), right(c).totals, strict=True)),
            ),
        },
    ),
    by_hand(
        "brevity-penalty",
        "one-reference",
        _both_ways,
        row({"of the candidate": FOUR_DECIMALS, "of the reference": FOUR_DECIMALS}),
        "1b: the brevity penalty of the candidate, and that of the reference in its place",
        "exp(1 − r/c) where c < r, and 1 where c ≥ r: c is the length of the text that is judged.",
        {
            "above-one": (
                "you applied exp(1 − r/c) although c > r; there it is above 1, and a penalty must "
                "not be a reward: it is 1",
                lambda c: both_ways(c, "always"),
            ),
            "inverted": (
                "you took exp(1 − c/r), which is above 1 for a short text; it is exp(1 − r/c)",
                lambda c: both_ways(c, "inverted"),
            ),
            "ratio": (
                "you took c/r itself; the penalty is exp(1 − r/c)",
                lambda c: both_ways(c, "ratio"),
            ),
            "longer": (
                "you punished the longer of the two (or gave the pair in the other order); the "
                "penalty is for what is too short, precision sees to the rest",
                lambda c: both_ways(c, "longer"),
            ),
            "none": (
                "you left the penalty out; the candidate is shorter than its reference",
                lambda c: both_ways(c, "none"),
            ),
            "letters": (
                "you counted letters; lengths are in words (a Python string has letters: split it)",
                _letters,
            ),
        },
    ),
    by_hand(
        "scores",
        "one-reference",
        lambda c: (right(c).score, right(c, "exp").score),
        row({"without smoothing": FOUR_DECIMALS, "with exp smoothing": FOUR_DECIMALS}),
        "1c: BLEU without smoothing, and with the smoothing exp",
        "A geometric mean with a 0 in it is 0. With exp the matches of the first order without one "
        "are taken as 1/2, those of the next one as 1/4.",
        {
            "arithmetic": (
                "you took the arithmetic mean; BLEU takes the geometric one, which 0 makes 0",
                _scores(average="arithmetic"),
            ),
            "left-out": (
                "you left the order without a match out; without smoothing it makes BLEU 0",
                lambda c: (_scores(average="left-out")(c)[0], right(c, "exp").score),
            ),
            "as-one": (
                "you took the precision without a match as 1 (its logarithm as 0); it is 0",
                lambda c: (_scores(average="as-one")(c)[0], right(c, "exp").score),
            ),
            "no-root": (
                "you multiplied the precisions and took no fourth root",
                _scores(average="product"),
            ),
            "no-penalty": ("you left the brevity penalty out", _scores(brevity="none")),
            "above-one": (
                "you took exp(1 − c/r) for the penalty, which is above 1; it is exp(1 − r/c)",
                _scores(brevity="inverted"),
            ),
            "no-total": (
                "you took 1/2 for the precision; it stands for the matches, so divide it by the "
                "number of n-grams",
                _scores(smoothing="no-total"),
            ),
            "late": (
                "you took 1 for the matches of the first order without one; exp begins with 1/2",
                _scores(smoothing="late"),
            ),
            "floor": (
                "you took 0.1 for the matches, which is the smoothing floor; exp takes 1/2",
                _scores(smoothing="floor"),
            ),
            "add-one": (
                "you added 1 to matches and totals; exp changes only orders without a match",
                _scores(smoothing="add-one"),
            ),
        },
    ),
)
