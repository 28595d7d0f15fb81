"""What a judge's comparisons say about the judge: position, length, and lost verdicts.

    flips         one order prefers one answer, the other order the other
    first place   the mean preference for whatever is shown first; 0.5 without a position bias
    longer        how often the longer answer is preferred, over both orders

The last one is no bias by itself: longer answers can be better. Compare an answer with a padded
copy of it to separate the two. For prompts and single answers, see `course_pkg.studies.judge`.

Source: Zheng et al. 2023, section 3.3. Chapter: evaluation/chat-benchmarks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_pkg.evaluation.statistics import FEWEST_UNITS, Interval, mean_interval, t_interval
from course_pkg.studies.chat_benchmarks.matches import Comparison


@dataclass(frozen=True)
class JudgeBias:
    """Shares with intervals by questions. longer: None if too few questions tell.

    failed: comparisons without a verdict in one of the orders, left out.
    """

    flips: Interval
    first_place: Interval
    longer: Interval | None
    failed: int


def judge_bias(comparisons: Sequence[Comparison], level: float = 0.95) -> JudgeBias:
    """Measure a judge on comparisons that were judged in both orders.

    Raises ValueError for verdicts on fewer than 5 questions.

    >>> sides = [(1.0, 1.0), (1.0, 0.0), (1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]
    >>> shown = [Comparison(f"q{n}", 1, "x", "y", a, b, 9, 5) for n, (a, b) in enumerate(sides)]
    >>> bias = judge_bias(shown)
    >>> print(bias.flips, "|", bias.first_place)
    0.500 [0.123, 0.877] | 0.750 [0.463, 1.000]
    """
    judged = [each for each in comparisons if each.outcome() is not None]
    questions = [each.question for each in judged]
    flips = [float((each.as_a - 0.5) * (each.as_b - 0.5) < 0) for each in judged]
    first = [(each.as_a + 1 - each.as_b) / 2 for each in judged]
    longer = []
    told = []
    for each in judged:
        mean = each.outcome("average")
        if each.first_length != each.second_length and mean != 0.5:
            longer.append(float((each.first_length > each.second_length) == (mean > 0.5)))
            told.append(each.question)
    place = t_interval(first, questions, level)
    return JudgeBias(
        mean_interval(flips, questions, level),
        Interval(place.estimate, max(0.0, place.low), min(1.0, place.high), level),
        mean_interval(longer, told, level) if len(set(told)) >= FEWEST_UNITS else None,
        len(comparisons) - len(judged),
    )
