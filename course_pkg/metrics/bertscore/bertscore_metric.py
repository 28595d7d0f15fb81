"""BERTScore of files and of answers, for the commands."""

from functools import cache
from typing import TYPE_CHECKING, Annotated

from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.text_files import ScoredTexts

if TYPE_CHECKING:  # needs torch
    from course_pkg.lm.encoder import Encoder

ENCODER = "minilm-l6"


def _score(
    texts: ScoredTexts,
    *,
    encoder: Annotated[str, MetricOption("minilm-l6, or a folder.")] = ENCODER,
    layer: Annotated[int | None, MetricOption("[default: the last]")] = None,
    idf: Annotated[bool, MetricOption("Weight tokens by the references' idf.")] = False,
) -> SystemScores:
    from course_pkg.metrics.bertscore.bertscore import bert_score

    result = bert_score(texts.hypotheses, texts.references, _loaded(encoder), layer=layer, idf=idf)
    return SystemScores(
        {name: getattr(result, name).tolist() for name in ("precision", "recall", "f1")},
        {"encoder": encoder, "layer": result.layer, "idf": idf},
        main=("f1",),
    )


def _f1(answer: str, reference: str) -> float:
    from course_pkg.metrics.bertscore.bertscore import bert_score

    return bert_score([answer], [reference], _loaded(ENCODER)).f1.item()


@cache
def _loaded(encoder: str) -> "Encoder":
    from course_pkg.lm.encoder import load_encoder

    return load_encoder(encoder)


BERTSCORE = Metric(
    "bertscore",
    "BERTScore",
    """BERTScore of a system: means over its texts, mostly from 0 to 1.

    Scores of different encoders can't be compared. -b prints the F1.

    Examples:

        course score bertscore ref.txt -i system.txt
        course score bertscore -i system.jsonl --idf -sl
    """,
    _score,
    {"bertscore": _f1},
)
