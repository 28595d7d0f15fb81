"""BLEU of files and of answers, for the commands.

Chapter: metrics/bleu.
"""

from typing import Annotated, Literal

import numpy as np

from course_pkg.metrics.bleu.score import PreparedReferences, sentence_bleu
from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.significance import TextStatistics
from course_pkg.metrics.text_files import ScoredTexts


def _score(
    texts: ScoredTexts,
    *,
    tokenize: Annotated[
        Literal["13a", "none", "char", "zh"], MetricOption("How a text becomes words.", "-tok")
    ] = "13a",
    lowercase: Annotated[bool, MetricOption("Ignore case.", "-lc")] = False,
    smooth_method: Annotated[
        Literal["exp", "floor", "add-k", "none"],
        MetricOption("What replaces an order without a match.", "-s"),
    ] = "exp",
    smooth_value: Annotated[
        float | None, MetricOption("Of floor [0.1] and add-k [1].", "-sv")
    ] = None,
    effective_order: Annotated[
        bool, MetricOption("Leave out orders that no text is long enough for.")
    ] = False,
) -> SystemScores:
    prepared = PreparedReferences(texts.references, tokenize=tokenize, lowercase=lowercase)
    smoothing = {"smoothing": smooth_method, "smooth_value": smooth_value}
    of_corpus = {**smoothing, "effective_order": effective_order}
    result = prepared.score(texts.hypotheses, **of_corpus)
    rows = prepared.counts(texts.hypotheses)
    of_texts = [prepared.score_of_counts(row, **smoothing, effective_order=True) for row in rows]
    percent = {f"precision_{n}": 100 * p for n, p in enumerate(result.precisions, start=1)}

    def of_sum(summed: np.ndarray) -> float:
        return 100 * prepared.score_of_counts(summed.tolist(), **of_corpus).score

    return SystemScores(
        {"bleu": [100 * each.score for each in of_texts]},
        dict(setting.split(":", 1) for setting in result.signature.split("|")),
        corpus={
            "bleu": 100 * result.score,
            **percent,
            "brevity_penalty": result.brevity_penalty,
            "hypothesis_length": result.hypothesis_length,
            "reference_length": result.reference_length,
        },
        statistics=TextStatistics(np.array(rows), of_sum),
    )


BLEU = Metric(
    "bleu",
    "BLEU",
    """BLEU of one system or several, from 0 to 100.

    Scores, draws and p-values are those of sacrebleu 2.6. -sl leaves out the orders for which a
    text is too short.

    Examples:

        course score bleu ref.txt -i system.txt
        course score bleu ref.txt ref2.txt -i system.txt -b -w 2
        course score bleu ref.txt -i baseline.txt system.txt --paired-bs
        course score bleu ref.txt -sl < system.txt
    """,
    _score,
    {"bleu": lambda answer, reference: sentence_bleu(answer, [reference]).score},
    digits=1,
)
