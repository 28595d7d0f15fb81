"""`bleu/corpus`: BLEU of many texts, each with references of its own, without smoothing.

Chapter: exercises.
"""

from typing import Any

from course_pkg.metrics.bleu import score as reference

from ...contract.compare import number
from ...contract.questions import Misconception, Property, Question
from . import corpora, methods

Inputs = dict[str, Any]


def expected(inputs: Inputs) -> float:
    """The reference's unsmoothed corpus score."""
    return reference.corpus_bleu(
        [" ".join(hypothesis) for hypothesis in inputs["hypotheses"]],
        [[" ".join(one) for one in own] for own in inputs["references"]],
        smoothing="none",
        tokenize="whitespace",
    ).score


CORPUS = Question(
    name="corpus",
    expected=expected,
    compare=number(rtol=1e-6),
    properties=(
        Property(
            "geometric",
            1,
            "for one text that is long enough, BLEU is the geometric mean of the four precisions",
            "math.exp of the mean of the four logarithms; a score is between 0 and 1.",
            corpora.draw_geometric,
        ),
        Property(
            "pooled",
            2,
            "counts are added up over the corpus first: BLEU is not a mean over its texts",
            "Keep four sums of matches and four sums of totals, and divide when all texts are in.",
            corpora.draw_pooled,
        ),
        Property(
            "lengths",
            1,
            "lengths are added up over the corpus before the penalty, which is taken once",
            "c is the sum of the hypotheses' lengths, r that of their closest reference lengths: a "
            "long text makes up for a short one.",
            corpora.draw_lengths,
        ),
        Property(
            "references",
            1,
            "each text has its own references, and may have any number of them",
            "Clip by the maximum over that text's references, and take the closest of their "
            "lengths, before you add anything up. The lists that you were given stay as they are.",
            corpora.draw_references,
        ),
        Property(
            "zero",
            1,
            "an order in which nothing matches makes the score exactly 0, and nothing else does",
            "Ask whether one of the four matches is 0 before you take a logarithm; only then is "
            "the score 0.",
            corpora.draw_zero,
            cases=4,
        ),
        Property(
            "empty",
            1,
            "an empty text has no n-grams, yet its reference length counts",
            "A system that says nothing must not be better off than one that says something wrong.",
            corpora.draw_empty,
        ),
        Property(
            "nothing",
            1,
            "a corpus of empty texts, or without a common word, scores 0 without an error; a "
            "perfect one scores 1",
            "Return 0.0 before you divide by a total or a length that may be 0.",
            corpora.draw_nothing,
        ),
    ),
    misconceptions=(
        Misconception(
            "mean-of-scores",
            "you took the mean of the texts' BLEU scores; the counts are added up, and the score "
            "is taken once",
            corpora.mean_of_scores,
            ("pooled", "lengths"),
        ),
        Misconception(
            "mean-of-precisions",
            "you took the mean of the texts' precisions; the matches and the totals are added up "
            "before the one division of each order",
            corpora.mean_of_precisions,
            ("pooled",),
        ),
        Misconception(
            "mean-of-penalties",
            "you took a brevity penalty for each text and their mean; it is taken once, from the "
            "sums of the lengths",
            corpora.mean_of_penalties,
            ("lengths",),
        ),
        Misconception(
            "no-penalty",
            "you left the brevity penalty out",
            methods.value(methods.bleu, brevity="none"),
            ("lengths", "empty"),
        ),
        Misconception(
            "above-one",
            "you applied exp(1 − r/c) although c > r; that is a reward above 1",
            methods.value(methods.bleu, brevity="always"),
            ("geometric",),
        ),
        Misconception(
            "arithmetic",
            "you took the arithmetic mean of the precisions; BLEU takes the geometric one",
            methods.value(methods.bleu, average="arithmetic"),
            ("geometric", "pooled", "references", "zero", "empty"),
            sometimes_right=True,
        ),
        Misconception(
            "no-root",
            "you multiplied the precisions and took no fourth root (or summed the logarithms and "
            "did not divide by 4)",
            methods.value(methods.bleu, average="product"),
            ("geometric", "pooled", "lengths", "references", "empty"),
        ),
        Misconception(
            "percent",
            "you gave the score in percent; it lies between 0 and 1",
            lambda inputs: 100 * expected(inputs),
            ("geometric", "pooled", "lengths", "references", "zero", "empty", "nothing"),
            sometimes_right=True,
        ),
        Misconception(
            "first",
            "you looked at the first reference of each text only",
            methods.value(methods.bleu, clip="first", length="first"),
            ("references",),
        ),
        Misconception(
            "shortest",
            "you took the shortest reference of each text; the one with the closest length counts",
            methods.value(methods.bleu, length="shortest"),
            ("references",),
        ),
        Misconception(
            "sum",
            "you clipped by the sum over the references; it is the maximum over them",
            methods.value(methods.bleu, clip="sum"),
            ("references",),
        ),
        Misconception(
            "left-out",
            "you left out the orders in which nothing matches; such an order makes BLEU 0",
            methods.value(methods.bleu, average="left-out"),
            ("zero",),
            sometimes_right=True,
        ),
        Misconception(
            "as-one",
            "you left the logarithm of 0 out, as if the precision were 1; it makes BLEU 0",
            methods.value(methods.bleu, average="as-one"),
            ("zero",),
            sometimes_right=True,
        ),
        Misconception(
            "smoothed",
            "you smoothed; without smoothing an order in which nothing matches makes BLEU 0",
            methods.value(methods.bleu, smoothing="exp"),
            ("zero",),
            sometimes_right=True,
        ),
        Misconception(
            "without-empty",
            "you left the empty text out; the length of its reference counts",
            corpora.without_empty,
            ("empty",),
        ),
    ),
)
