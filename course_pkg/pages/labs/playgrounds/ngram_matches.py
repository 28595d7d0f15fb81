"""BLEU: n-grams that match, precisions, the brevity penalty, the score."""

from math import isclose

from course_pkg.metrics.bleu import BleuScore, corpus_bleu
from course_pkg.metrics.ngrams import count, maximum_counts, ngrams
from course_pkg.metrics.tokenizers import tokenize
from course_pkg.pages.labs.playgrounds.markup import (
    Safe,
    chip,
    element,
    formula,
    joined,
    number,
    scientific,
    table,
)
from course_pkg.pages.labs.playgrounds.playground import Field, Playground, WrongInput

KINDS = {"match": "matches", "clipped": "used up, so clipped", "none": "in no reference"}


def matched(tokens: list[str], references: list[list[str]], n: int) -> list[tuple[str, str]]:
    """Every n-gram of the hypothesis, and whether it matches, is clipped, or is in no reference.

    Example:

        >>> matched(["the", "the", "cat"], [["the", "dog"]], 1)
        [('the', 'match'), ('the', 'clipped'), ('cat', 'none')]
    """
    left = dict(maximum_counts([count(reference, n) for reference in references]))
    known = set(left)
    marked = []
    for gram in ngrams(tokens, n):
        if left.get(gram, 0) > 0:
            kind = "match"
            left[gram] -= 1
        else:
            kind = "clipped" if gram in known else "none"
        marked.append((" ".join(gram), kind))
    return marked


def view(hypothesis: str, references: list[str], order: int, tokenizer: str, smoothing: str) -> str:
    """The calculation of BLEU, step by step."""
    if not references:
        raise WrongInput("References: expected one or more lines, but there is none")
    score = corpus_bleu(
        [hypothesis], [references], max_order=order, tokenize=tokenizer, smoothing=smoothing
    )
    tokens = tokenize(hypothesis, tokenizer)
    others = [tokenize(text, tokenizer) for text in references]
    rows = []
    for n in range(1, order + 1):
        grams = matched(tokens, others, n)
        chips = joined((chip(text, kind) for text, kind in grams), " ") or "none"
        share = f"{score.matches[n - 1]} of {score.totals[n - 1]}"
        if not isclose(score.precisions[n - 1] * score.totals[n - 1], score.matches[n - 1]):
            share += ", smoothed"
        rows.append((n, chips, share, number(score.precisions[n - 1])))
    legend = joined((chip(text, kind) for kind, text in KINDS.items()), " ")
    head = ("n", "n-grams of the hypothesis", "matches", "precision")
    return joined([element("p", legend), table(head, rows), steps(score)])


def steps(score: BleuScore) -> Safe:
    """The penalty and the score as a formula with numbers."""
    c = score.hypothesis_length
    r = score.reference_length
    penalty = scientific(score.brevity_penalty)
    why = rf"e^{{1 - {r}/{c}}} = {penalty}" if 0 < c < r else penalty
    precisions = r" \cdot ".join(map(scientific, score.precisions))
    lines = [
        rf"\mathrm{{BP}} &= {why} \quad (c = {c},\; r = {r})",
        rf"\mathrm{{BLEU}} &= {penalty} \cdot ({precisions})^{{1/{len(score.precisions)}}}",
        rf"&= {scientific(score.score)}",
    ]
    return formula(r"\begin{aligned}" + r"\\".join(lines) + r"\end{aligned}")


PLAYGROUND = Playground(
    "bleu",
    "BLEU of one sentence",
    (
        Field("hypothesis", "Hypothesis", "text", "the cat the cat on the mat"),
        Field("references", "References, one a line", "lines", "the cat is on the mat", most=600),
        Field("order", "Orders, up to n", "integer", "4", low=1, high=6),
        Field(
            "tokenizer", "Tokenizer", "choice", "13a", options=("13a", "whitespace", "char", "zh")
        ),
        Field(
            "smoothing", "Smoothing", "choice", "none", options=("none", "exp", "add-k", "floor")
        ),
    ),
    view,
)
