"""ROUGE: six measures of how much of a reference summary a hypothesis contains.

All take one hypothesis, a reference or a list of references, and the keywords of `RougeOptions`.
Each line is one sentence; an empty text scores 0. Sources: Lin 2004, "ROUGE: A Package for
Automatic Evaluation of Summaries"; ROUGE-1.5.5.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Literal

from course_pkg.common.arguments import require_choice, require_list, require_number
from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.ngrams import clipped_matches, count
from course_pkg.metrics.rouge import lcs, perl
from course_pkg.metrics.rouge.counts import Overlap, RougeScore, score_texts
from course_pkg.metrics.rouge.options import RougeOptions
from course_pkg.metrics.rouge.skip_bigrams import skip_bigram_matches, skip_bigram_total
from course_pkg.metrics.text_files import ScoredTexts


def rouge_n(hypothesis: str, references: str | Iterable[str], n: int = 1, **options) -> RougeScore:
    """Compute ROUGE-N: the n-grams of the references that are in the hypothesis, clipped.

    >>> rouge_n("the cat sat on the mat", "the cat is on the mat", n=2).recall
    0.6
    """

    def overlap(hypothesis: list[str], reference: list[str]) -> Overlap:
        counts = count(hypothesis, n), count(reference, n)
        return Overlap(clipped_matches(*counts), counts[0].total(), counts[1].total())

    return score_texts(overlap, hypothesis, references, RougeOptions(**options))


def rouge_l(hypothesis: str, references: str | Iterable[str], **options) -> RougeScore:
    """Compute ROUGE-L: the longest common subsequence of the two texts; line breaks are ignored.

    In mode "rouge155" it is `rouge_lsum`, as in the Perl tool. Source: Lin 2004, section 3.1.
    """
    chosen = RougeOptions(**options)
    if chosen.perl:
        return rouge_lsum(hypothesis, references, **options)

    def overlap(hypothesis: list[str], reference: list[str]) -> Overlap:
        return Overlap(lcs.lcs_length(reference, hypothesis), len(hypothesis), len(reference))

    return score_texts(overlap, hypothesis, references, chosen)


def rouge_lsum(hypothesis: str, references: str | Iterable[str], **options) -> RougeScore:
    """Compute summary-level ROUGE-L: each reference line's union of its LCS with every line.

    A word counts at most as often as it occurs in either text, as in both tools (the paper has no
    such limit, so its precision can exceed 1). Source: Lin 2004, section 3.2; ROUGE-1.5.5.
    """

    def overlap(hypothesis: list[list[str]], reference: list[list[str]]) -> Overlap:
        states = lcs.clipped_union(reference, hypothesis, lcs.lcs_union)
        hits = sum(line.count(lcs.COUNTED) for line in states)
        total = sum(map(len, reference))
        rank = hits / total if total else 0.0
        return Overlap(hits, sum(map(len, hypothesis)), total, rank)

    return score_texts(overlap, hypothesis, references, RougeOptions(**options), lines=True)


def rouge_w(
    hypothesis: str, references: str | Iterable[str], *, weight: float = 1.2, **options
) -> RougeScore:
    """Compute ROUGE-W: an LCS in which a run of k matches without a gap counts k ** weight.

    P and R are raised to the power 1 / weight, from 1 (ROUGE-L) to 4. Time grows with the product
    of the lengths. Source: Lin 2004, section 4, equations 13 to 15.
    """
    if not 1 <= require_number(weight, "weight") <= 4:
        raise ValueError(f"weight must be from 1 to 4, got {weight}; 1.2 is usual")
    chosen = RougeOptions(**options)

    def paper(hypothesis: list[str], reference: list[str]) -> Overlap:
        matches = lcs.wlcs_length(reference, hypothesis, weight)
        return Overlap(matches, len(hypothesis) ** weight, len(reference) ** weight)

    def rouge155(hypothesis: list[list[str]], reference: list[list[str]]) -> Overlap:
        union = partial(perl.wlcs_union, weight=weight)
        hits = perl.weighted_hits(lcs.clipped_union(reference, hypothesis, union), weight)
        base = sum(len(line) ** weight for line in reference)
        rank = (hits / base) ** (1 / weight) if base else 0.0  # base is not raised to weight here
        return Overlap(hits, sum(map(len, hypothesis)) ** weight, base**weight, rank)

    overlap = rouge155 if chosen.perl else paper
    return score_texts(overlap, hypothesis, references, chosen, lines=chosen.perl, weight=weight)


def rouge_s(
    hypothesis: str, references: str | Iterable[str], *, max_gap: int | None = None, **options
) -> RougeScore:
    """Compute ROUGE-S: the pairs of words in the same order in both texts, gaps allowed.

    max_gap: how many words may be between the two, None for any number; it is the Perl tool's
    option -2 (-1: any). Source: Lin 2004, section 5, equations 16 to 18.
    """

    def overlap(hypothesis: list[str], reference: list[str]) -> Overlap:
        totals = (skip_bigram_total(len(tokens), max_gap) for tokens in (hypothesis, reference))
        return Overlap(skip_bigram_matches(hypothesis, reference, max_gap), *totals)

    return score_texts(overlap, hypothesis, references, RougeOptions(**options))


def rouge_su(
    hypothesis: str, references: str | Iterable[str], *, max_gap: int | None = None, **options
) -> RougeScore:
    """Compute ROUGE-SU: skip-bigrams and single words, counted together (Lin 2004, section 5.1).

    In mode "rouge155" the last word of a text is not counted as a single word.
    """
    chosen = RougeOptions(**options)

    def overlap(hypothesis: list[str], reference: list[str]) -> Overlap:
        texts = (hypothesis, reference)
        words = [count(tokens[:-1] if chosen.perl else tokens, 1) for tokens in texts]
        matches = skip_bigram_matches(hypothesis, reference, max_gap) + clipped_matches(*words)
        totals = (
            skip_bigram_total(len(tokens), max_gap) + counter.total()
            for tokens, counter in zip(texts, words, strict=True)
        )
        return Overlap(matches, *totals)

    return score_texts(overlap, hypothesis, references, chosen)


KINDS: dict[str, Callable[..., RougeScore]] = {
    **{
        f"rouge{n}": lambda *texts, n=n, **options: rouge_n(*texts, n, **options)
        for n in range(1, 10)
    },
    "rougeL": rouge_l,
    "rougeLsum": rouge_lsum,
}  # named as in rouge-score
USUAL = ("rouge1", "rouge2", "rougeL", "rougeLsum")
PARTS = ("precision", "recall", "fmeasure")


def text_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    kinds: Sequence[str] = USUAL,
    **options,
) -> dict[str, tuple[RougeScore, ...]]:
    """ROUGE of each of a system's texts, by kinds such as "rouge1"; the system's is their mean."""
    require_list(hypotheses, "hypotheses", "give a list of texts")
    require_list(references, "references", "give one text, or one list of texts, per hypothesis")
    if len(hypotheses) != len(references) or not len(hypotheses):
        raise ValueError(
            f"got {len(hypotheses)} hypotheses and {len(references)} references: give one text, "
            "or one list of texts, for each of at least one hypothesis"
        )
    by_kind = {}
    for kind in kinds:
        score = KINDS[require_choice(kind, "kind", KINDS)]
        pairs = zip(hypotheses, references, strict=True)
        by_kind[kind] = tuple(score(text, group, **options) for text, group in pairs)
    return by_kind


def _score(
    texts: ScoredTexts,
    *,
    kind: Annotated[
        list[str] | None,
        MetricOption("rouge1 to rouge9, rougeL, rougeLsum; repeatable [default: 1, 2, L, Lsum]"),
    ] = None,
    stem: Annotated[bool, MetricOption("Compare words' Porter stems.")] = False,
    tokenize: Annotated[
        Literal["rouge", "unicode", "whitespace", "char", "zh", "13a"],
        MetricOption("How a text becomes words.", "-tok"),
    ] = "rouge",
    multi: Annotated[
        Literal["best", "average", "pooled"], MetricOption("How several references are combined.")
    ] = "best",
) -> SystemScores:
    by_kind = text_scores(
        texts.hypotheses, texts.references, kind or USUAL, stem=stem, tokenize=tokenize, multi=multi
    )
    columns = {
        f"{name}_{part}": [getattr(score, part) for score in scores]
        for name, scores in by_kind.items()
        for part in PARTS
    }
    return SystemScores(
        columns,
        {"stem": stem, "tok": tokenize, "multi": multi},
        main=tuple(f"{name}_fmeasure" for name in by_kind),
    )


ROUGE = Metric(
    "rouge",
    "ROUGE",
    """ROUGE of a system: means over its texts, from 0 to 1.

    Scores are those of rouge-score 0.1.2. For ROUGE-Lsum, each line of a text is a sentence, so a
    summary of several needs JSON lines with \\n. -b prints the F-measures.

    Examples:

        course score rouge ref.txt -i system.txt
        course score rouge -i system.jsonl --kind rouge2 --kind rougeLsum --stem
        course score rouge ref.txt -i system.txt -sl -b
    """,
    _score,
    {
        "rouge-1": lambda answer, reference: rouge_n(answer, reference, 1).fmeasure,
        "rouge-2": lambda answer, reference: rouge_n(answer, reference, 2).fmeasure,
        "rouge-l": lambda answer, reference: rouge_l(answer, reference).fmeasure,
    },
)
