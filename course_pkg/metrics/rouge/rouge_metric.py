"""ROUGE of many texts, and of files and answers, for the commands. Chapter: metrics/rouge."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from course_pkg.common.arguments import require_choice, require_list
from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.rouge.counts import RougeScore
from course_pkg.metrics.rouge.score import rouge_l, rouge_lsum, rouge_n
from course_pkg.metrics.text_files import ScoredTexts

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
    """Compute ROUGE of each of a system's texts; the system's is their mean, unlike BLEU.

    Args:
        references: for each hypothesis, a text or a list of texts.
        kinds: "rouge1" to "rouge9", "rougeL", "rougeLsum".
        options: those of `RougeOptions`.

    >>> [scores] = text_scores(["the cat", "so"], ["the cat sat", "so"], ["rouge1"]).values()
    >>> [round(score.recall, 2) for score in scores]
    [0.67, 1.0]
    """
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
