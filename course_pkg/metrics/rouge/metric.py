"""ROUGE of files and of answers, for the commands.

Chapter: metrics/rouge.
"""

from typing import Annotated, Literal

from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.rouge.corpus import USUAL, text_scores
from course_pkg.metrics.rouge.score import rouge_l, rouge_n
from course_pkg.metrics.text_files import ScoredTexts

PARTS = ("precision", "recall", "fmeasure")


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
