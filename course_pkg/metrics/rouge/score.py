"""ROUGE: how much of a reference summary a hypothesis contains, six ways.

rouge_n counts n-grams; rouge_l the longest common subsequence of the texts, rouge_lsum that of
their sentences; rouge_w prefers matches without gaps; rouge_s counts skip-bigrams, rouge_su words
as well. All take the same options:

    references  a string, or a list of strings of which `multi` says how they are used
    beta        F weighs recall beta² times as much as precision
    multi       "best" (as rouge-score, by F), "pooled", "average"; None is the mode's own
    stem, tokenize  what a token is: see rouge_text.rouge_tokens
    mode        "paper", which is what rouge-score computes where it has the metric; or "rouge155",
                Lin's Perl script with its departures from the paper: rouge_l is rouge_lsum;
                rouge_w weighs a reference's length twice and looks for gaps in the reference
                alone; rouge_su leaves out the last word; several references are pooled (-f A), or
                the best is that of highest recall (-f B); five digits.

This module counts one hypothesis at a time. It neither splits sentences (a line is one) nor
resamples.

Sources: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; ROUGE-1.5.5.
Chapter: metrics/rouge.
"""

from collections.abc import Iterable
from functools import partial

from course_pkg.metrics.ngrams import clipped_matches, count
from course_pkg.metrics.rouge import lcs, perl
from course_pkg.metrics.rouge.counts import Overlap, RougeScore, score_texts
from course_pkg.metrics.rouge.skip_bigrams import rouge_s, rouge_su
from course_pkg.metrics.rouge.tokens import Stem
from course_pkg.metrics.tokenizers import Tokenizer

__all__ = ["rouge_l", "rouge_lsum", "rouge_n", "rouge_s", "rouge_su", "rouge_w"]


def rouge_n(
    hypothesis: str,
    references: str | Iterable[str],
    n: int = 1,
    *,
    beta: float = 1.0,
    multi: str | None = None,
    stem: Stem = False,
    tokenize: str | Tokenizer = "rouge",
    mode: str = "paper",
) -> RougeScore:
    """ROUGE-N: n-grams of the references that are in the hypothesis too, clipped.

    Takes linear time. Raises TypeError for anything but strings, ValueError for no
    reference, n below 1, or an unknown option. An empty text scores 0.
    Source: Lin 2004, section 2.

    >>> rouge_n("the cat sat on the mat", "the cat is on the mat", n=2).recall
    0.6
    """

    def overlap(mine: list[str], yours: list[str]) -> Overlap:
        mine, yours = count(mine, n), count(yours, n)
        return Overlap(clipped_matches(mine, yours), mine.total(), yours.total())

    return score_texts(overlap, hypothesis, references, beta, multi, stem, tokenize, mode)


def rouge_l(
    hypothesis: str,
    references: str | Iterable[str],
    *,
    beta: float = 1.0,
    multi: str | None = None,
    stem: Stem = False,
    tokenize: str | Tokenizer = "rouge",
    mode: str = "paper",
) -> RougeScore:
    """ROUGE-L: the longest common subsequence of the two texts, line breaks ignored.

    In mode "rouge155" it is `rouge_lsum`, which the Perl tool calls ROUGE-L. Errors as for
    `rouge_n`; bit-parallel, see `lcs.lcs_length`.
    Source: Lin 2004, section 3.1.

    >>> rouge_l("cat mat", "the cat is on the mat").fmeasure
    0.5
    """
    if mode == perl.MODE:
        options = {"beta": beta, "multi": multi, "stem": stem, "tokenize": tokenize}
        return rouge_lsum(hypothesis, references, **options, mode=mode)

    def overlap(mine: list[str], yours: list[str]) -> Overlap:
        return Overlap(lcs.lcs_length(yours, mine), len(mine), len(yours))

    return score_texts(overlap, hypothesis, references, beta, multi, stem, tokenize, mode)


def rouge_lsum(
    hypothesis: str,
    references: str | Iterable[str],
    *,
    beta: float = 1.0,
    multi: str | None = None,
    stem: Stem = False,
    tokenize: str | Tokenizer = "rouge",
    mode: str = "paper",
) -> RougeScore:
    """Summary-level ROUGE-L: for each reference line the union of its LCS with every line.

    One sentence per line. A word counts no oftener than in either text, as in both tools (the
    paper has no such limit, and then precision can exceed 1). Time grows with the product of the
    numbers of lines. Errors as for `rouge_n`.
    Source: Lin 2004, section 3.2; ROUGE-1.5.5.

    >>> rouge_lsum("w1 w2 w6 w7 w8\\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5").recall
    0.8
    """

    def overlap(mine: list[list[str]], yours: list[list[str]]) -> Overlap:
        marks = lcs.clipped_union(yours, mine, lcs.lcs_union)
        hits = sum(line.count(lcs.COUNTED) for line in marks)
        total = sum(map(len, yours))
        return Overlap(hits, sum(map(len, mine)), total, rank=hits / total if total else 0.0)

    return score_texts(
        overlap, hypothesis, references, beta, multi, stem, tokenize, mode, lines=True
    )


def rouge_w(
    hypothesis: str,
    references: str | Iterable[str],
    *,
    weight: float = 1.2,
    beta: float = 1.0,
    multi: str | None = None,
    stem: Stem = False,
    tokenize: str | Tokenizer = "rouge",
    mode: str = "paper",
) -> RougeScore:
    """ROUGE-W: an LCS in which a run of k matches without a gap counts k ** weight.

    weight: at least 1; 1 gives ROUGE-L, 1.2 is usual. P and R are the 1 / weight-th powers.
    Time grows with the product of the lengths. Mode "rouge155" works line by line, and raises
    ValueError for lines too long to keep their table. Other errors as for `rouge_n`.
    Source: Lin 2004, section 4, equations 13 to 15.

    >>> rouge_w("a b x y c d", "a b c d", weight=2).recall
    0.7071067811865476
    """
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise TypeError(f"weight must be a number of at least 1, got {weight!r}")
    if not 1 <= weight <= 4:
        raise ValueError(f"weight must be from 1 to 4, got {weight}; 1.2 is usual")

    def paper(mine: list[str], yours: list[str]) -> Overlap:
        matches = lcs.wlcs_length(yours, mine, weight)
        return Overlap(matches, len(mine) ** weight, len(yours) ** weight)

    def rouge155(mine: list[list[str]], yours: list[list[str]]) -> Overlap:
        marks = lcs.clipped_union(yours, mine, partial(perl.wlcs_union, weight=weight))
        hits = perl.weighted_hits(marks, weight)
        base = sum(len(line) ** weight for line in yours)
        rank = (hits / base) ** (1 / weight) if base else 0.0  # here the length counts once
        return Overlap(hits, sum(map(len, mine)) ** weight, base**weight, rank)

    lines = mode == perl.MODE
    overlap = rouge155 if lines else paper
    options = (beta, multi, stem, tokenize, mode)
    kind = {"lines": lines, "weight": weight}
    return score_texts(overlap, hypothesis, references, *options, **kind)
