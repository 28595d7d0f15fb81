"""What to check before you believe a judge: position, length, repeatability.

Each check changes something that must not matter, and reports how much it did: the order of two
answers, the length of one, the draw, the wording of the prompt. None of them needs a human's
rating; agreement with humans is the other half of the matter, and is measured by correlation.

Sources: Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", section 3.3;
Wang et al. 2024, "Large Language Models are not Fair Evaluators". Chapter: metrics/judge.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from course_pkg.metrics.judge.geval import Judge, JudgeError, ask, g_eval, read_option
from course_pkg.metrics.judge.prompt import JudgeTask, build_prompt, require_text


@dataclass(frozen=True)
class Pair:
    """A question and two answers to it."""

    question: str
    first: str
    second: str


@dataclass(frozen=True)
class PairVerdict:
    """How much a judge prefers a pair's `first` answer, shown in both places.

    as_a, as_b: probability that it is preferred when it is shown as answer A, as answer B.

    >>> verdict = PairVerdict(as_a=0.9, as_b=0.6)
    >>> verdict.preference, verdict.consistent
    (0.75, True)
    """

    as_a: float
    as_b: float

    @property
    def preference(self) -> float:
        """The mean over both orders, in which a liking for a place cancels."""
        return (self.as_a + self.as_b) / 2

    @property
    def consistent(self) -> bool:
        """Whether the same answer wins in both orders; a draw in either is none."""
        return (self.as_a - 0.5) * (self.as_b - 0.5) > 0


@dataclass(frozen=True)
class PositionBias:
    """What changes when the two answers of each pair change places.

    >>> PositionBias((PairVerdict(as_a=0.75, as_b=0.25),)).first_place
    0.75
    """

    verdicts: tuple[PairVerdict, ...]

    @property
    def first_place(self) -> float:
        """Mean probability of the answer that is shown first; 0.5 is no liking for a place."""
        return fmean((v.as_a + 1 - v.as_b) / 2 for v in self.verdicts)

    @property
    def consistent(self) -> float:
        """Share of the pairs in which the same answer wins in both orders."""
        return fmean(v.consistent for v in self.verdicts)


@dataclass(frozen=True)
class Change:
    """Scores of the same texts before and after something that should not matter.

    >>> Change((2.0, 3.0), (2.5, 3.5)).mean
    0.5
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def differences(self) -> tuple[float, ...]:
        """After minus before, text by text."""
        return tuple(b - a for a, b in zip(self.before, self.after, strict=True))

    @property
    def mean(self) -> float:
        """The mean difference: positive if the judge likes the change."""
        return fmean(self.differences)


@dataclass(frozen=True)
class Spread:
    """Scores that should all be equal; unread: how many more answers were no score.

    >>> Spread((1.0, 3.0)).std, Spread((1.0, 3.0)).range
    (1.0, 2.0)
    """

    scores: tuple[float, ...]
    unread: int = 0

    @property
    def std(self) -> float:
        """Their standard deviation."""
        return pstdev(self.scores)

    @property
    def range(self) -> float:
        """The largest minus the smallest."""
        return max(self.scores) - min(self.scores)


def pairwise_prompt(question: str, a: str, b: str) -> str:
    """The prompt that asks which of two answers is better; the judge completes "Better answer:".

    >>> pairwise_prompt("Why?", "Because.", "No idea.").splitlines()[-1]
    'Which answer is better? Reply with A or B only.'
    """
    parts = [
        "You will be given a question and two answers to it. Decide which answer is better.",
        f"Question:\n{require_text(question, 'question')}",
        f"Answer A:\n{require_text(a, 'answer A')}",
        f"Answer B:\n{require_text(b, 'answer B')}",
        "Which answer is better? Reply with A or B only.",
    ]
    return "\n\n".join(parts)


def prefer_first(judge: Judge, question: str, a: str, b: str, *, seed: int = 0) -> float:
    """Probability that a judge prefers answer A to B, shown in this order.

    Source: Zheng et al. 2023, section 3.1 (pairwise comparison).
    """
    prompt = pairwise_prompt(question, a, b)
    return ask(judge, prompt, "Better answer:", ["A", "B"], seed=seed).probabilities[0]


def position_bias(judge: Judge, pairs: Sequence[Pair], *, seed: int = 0) -> PositionBias:
    """Ask about every pair twice, the answers swapped.

    Raises ValueError for no pairs. Source: Zheng et al. 2023, section 3.3.
    """
    if not pairs:
        raise ValueError("pairs is empty; give at least one Pair(question, first, second)")
    verdicts = []
    for pair in pairs:
        shown_first = prefer_first(judge, pair.question, pair.first, pair.second, seed=seed)
        shown_second = 1 - prefer_first(judge, pair.question, pair.second, pair.first, seed=seed)
        verdicts.append(PairVerdict(shown_first, shown_second))
    return PositionBias(tuple(verdicts))


def length_bias(
    judge: Judge,
    task: JudgeTask,
    items: Sequence[Mapping[str, str]],
    title: str,
    pad: Callable[[str], str],
    *,
    seed: int = 0,
) -> Change:
    """Score texts, make one of them longer without adding content, and score again.

    items: as `g_eval` takes them. title: which of the texts to pad. pad: makes the longer text,
    for instance by saying everything twice. Raises ValueError for no items, KeyError for a title
    that an item lacks, ValueError if pad does not lengthen.
    Source: Zheng et al. 2023, section 3.3 (verbosity bias).
    """
    if not items:
        raise ValueError('items is empty; give at least one, such as {"Answer": "..."}')
    before, after = [], []
    for item in items:
        if title not in item:
            raise KeyError(f"no text has the title {title!r}; there are {list(item)}")
        longer = {**item, title: pad(item[title])}
        if len(longer[title]) <= len(item[title]):
            raise ValueError(f"pad must make a text longer; it made {longer[title]!r}")
        before.append(g_eval(judge, task, item, seed=seed).score)
        after.append(g_eval(judge, task, longer, seed=seed).score)
    return Change(tuple(before), tuple(after))


def repeatability(
    judge: Judge,
    task: JudgeTask,
    texts: Mapping[str, str],
    *,
    repeats: int = 20,
    temperature: float = 1.0,
    seed: int = 0,
) -> Spread:
    """Draw so many answers to one and the same prompt, and read a score from each by itself.

    Answers that can't be read are counted in `unread`. At temperature 0, or by probabilities, a
    judge that runs here repeats itself exactly; one behind a server may not.
    Raises ValueError for fewer than two repeats, JudgeError if fewer than two answers can be read.
    """
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 2:
        raise ValueError(f"repeats must be a whole number of at least 2, got {repeats!r}")
    how = {"n": repeats, "max_tokens": 8, "temperature": temperature, "seed": seed}
    replies = judge.write(build_prompt(task, texts), task.label, **how)
    options = [str(score) for score in task.scores]
    read = [read_option(reply, options, task.label) for reply in replies]
    scores = tuple(float(score) for score in read if score is not None)
    if len(scores) < 2:
        raise JudgeError(f"{len(scores)} of {repeats} answers can be read: {replies[:3]}")
    return Spread(scores, repeats - len(scores))


def wording_spread(
    judge: Judge, tasks: Sequence[JudgeTask], texts: Mapping[str, str], *, seed: int = 0
) -> Spread:
    """Score one text under several wordings of the same task.

    tasks: at least two, with the same scores; raises ValueError otherwise.
    """
    if len(tasks) < 2 or len({task.scores for task in tasks}) > 1:
        raise ValueError("tasks must be two or more wordings of one task, with the same scores")
    return Spread(tuple(g_eval(judge, task, texts, seed=seed).score for task in tasks))
