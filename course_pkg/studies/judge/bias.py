"""Checks of a judge: change something that should not matter, and measure how the verdict changes.

Sources: Zheng et al. 2023, "Judging LLM-as-a-Judge", section 3.3; Wang et al. 2024.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from course_pkg.common.arguments import require_integer
from course_pkg.studies.judge.geval import (
    Judge,
    JudgeError,
    JudgeTask,
    ask,
    build_prompt,
    g_eval,
    read_option,
    require_text,
)


@dataclass(frozen=True)
class Pair:
    """A question and two answers to it."""

    question: str
    first: str
    second: str


@dataclass(frozen=True)
class PairVerdict:
    """The probability that a pair's `first` answer is preferred, shown as answer A, and as B."""

    as_a: float
    as_b: float

    @property
    def preference(self) -> float:
        """The mean over both orders, in which a position bias cancels out."""
        return (self.as_a + self.as_b) / 2

    @property
    def consistent(self) -> bool:
        """Whether the same answer wins in both orders; a tie in either order is not consistent."""
        return (self.as_a - 0.5) * (self.as_b - 0.5) > 0


@dataclass(frozen=True)
class PositionBias:
    """What changes when the two answers of each pair are swapped."""

    verdicts: tuple[PairVerdict, ...]

    @property
    def first_place(self) -> float:
        """The mean probability of the answer that is shown first; 0.5 means no position bias."""
        return fmean((v.as_a + 1 - v.as_b) / 2 for v in self.verdicts)


@dataclass(frozen=True)
class Change:
    """Scores of the same texts before and after something that should not matter."""

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean difference; it is positive if the change raises the scores."""
        return fmean(b - a for a, b in zip(self.before, self.after, strict=True))


@dataclass(frozen=True)
class ScoreSpread:
    """Scores that should all be equal; `unread` counts further answers without a score."""

    scores: tuple[float, ...]
    unread: int = 0

    @property
    def std(self) -> float:
        """The standard deviation of the scores."""
        return pstdev(self.scores)

    @property
    def range(self) -> float:
        """The largest score minus the smallest."""
        return max(self.scores) - min(self.scores)


def pairwise_prompt(question: str, a: str, b: str) -> str:
    """Build the prompt that asks which answer is better; "Better answer:" follows it."""
    parts = [
        "You will be given a question and two answers to it. Decide which answer is better.",
        f"Question:\n{require_text(question, 'question')}",
        f"Answer A:\n{require_text(a, 'answer A')}",
        f"Answer B:\n{require_text(b, 'answer B')}",
        "Which answer is better? Reply with A or B only.",
    ]
    return "\n\n".join(parts)


def prefer_first(judge: Judge, question: str, a: str, b: str) -> float:
    """Return the probability that a judge prefers answer A to B, shown in this order."""
    prompt = pairwise_prompt(question, a, b)
    return ask(judge, prompt, "Better answer:", ["A", "B"]).probabilities[0]


def position_bias(judge: Judge, pairs: Sequence[Pair]) -> PositionBias:
    """Ask about every pair twice, the second time with the answers swapped."""
    if not pairs:
        raise ValueError("pairs is empty; give at least one Pair(question, first, second)")
    if isinstance(pairs, Pair) or not all(isinstance(pair, Pair) for pair in pairs):
        raise TypeError(f"pairs must be a list of Pair(question, first, second), got {pairs!r:.80}")
    verdicts = []
    for pair in pairs:
        shown_first = prefer_first(judge, pair.question, pair.first, pair.second)
        shown_second = 1 - prefer_first(judge, pair.question, pair.second, pair.first)
        verdicts.append(PairVerdict(shown_first, shown_second))
    return PositionBias(tuple(verdicts))


def length_bias(
    judge: Judge,
    task: JudgeTask,
    items: Sequence[Mapping[str, str]],
    title: str,
    pad: Callable[[str], str],
) -> Change:
    """Score each item, pad its text `title` without adding content, and score it again."""
    if not items:
        raise ValueError('items is empty; give at least one, such as {"Answer": "..."}')
    before = []
    after = []
    for item in items:
        if title not in item:
            raise KeyError(f"title must be one of {list(item)}, got {title!r}")
        longer = {**item, title: pad(item[title])}
        if len(longer[title]) <= len(item[title]):
            raise ValueError(f"pad must return a longer text, got {longer[title]!r}")
        before.append(g_eval(judge, task, item).score)
        after.append(g_eval(judge, task, longer).score)
    return Change(tuple(before), tuple(after))


def repeatability(
    judge: Judge, task: JudgeTask, texts: Mapping[str, str], *, repeats: int = 20, seed: int = 0
) -> ScoreSpread:
    """Draw several answers to the same prompt, and read a score from each one."""
    require_integer(repeats, "repeats", 2)
    settings = {"n": repeats, "max_tokens": 8, "temperature": 1.0, "seed": seed}
    replies = judge.write(build_prompt(task, texts), task.label, **settings)
    options = [str(score) for score in task.scores]
    read = [read_option(reply, options, task.label) for reply in replies]
    scores = tuple(float(score) for score in read if score is not None)
    if len(scores) < 2:
        raise JudgeError(
            f"only {len(scores)} of {repeats} answers contain a score: {replies[:3]}; "
            "ask for the score alone"
        )
    return ScoreSpread(scores, repeats - len(scores))


def wording_spread(
    judge: Judge, tasks: Sequence[JudgeTask], texts: Mapping[str, str]
) -> ScoreSpread:
    """Score one text under two or more wordings of the same task, with the same scores."""
    scales = list(dict.fromkeys(task.scores for task in tasks))
    if len(tasks) < 2 or len(scales) > 1:
        raise ValueError(
            "tasks must be two or more wordings of one task with the same scores, "
            f"got {len(tasks)} with the scores {scales}"
        )
    return ScoreSpread(tuple(g_eval(judge, task, texts).score for task in tasks))
