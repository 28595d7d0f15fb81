"""METEOR of files and of answers, for the commands.

Chapter: metrics/meteor.
"""

from typing import Annotated, Literal

from course_pkg.metrics.meteor.score import meteor
from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.text_files import ScoredTexts


def _score(
    texts: ScoredTexts,
    *,
    version: Annotated[Literal["2005", "1.5"], MetricOption("The parameters.")] = "2005",
    no_synonyms: Annotated[
        bool, MetricOption("Match words and stems only, without WordNet.")
    ] = False,
) -> SystemScores:
    synonyms = None if no_synonyms else "wordnet"
    results = [
        meteor(text, group, version=version, synonyms=synonyms)
        for text, group in zip(texts.hypotheses, texts.references, strict=True)
    ]
    return SystemScores(
        {"meteor": [result.score for result in results]},
        {"params": version, "synonyms": "synonym" in results[0].stages},
    )


METEOR = Metric(
    "meteor",
    "METEOR",
    """METEOR of a system: the mean over its texts, from 0 to 1.

    With version 2005, nltk's formula; where nltk aligns greedily, this finds the best alignment.

    Examples:

        course score meteor ref.txt -i system.txt --no-synonyms
        course score meteor -i system.jsonl --version 1.5 --no-synonyms -sl
    """,
    _score,
    {"meteor": lambda answer, reference: meteor(answer, reference).score},
)
