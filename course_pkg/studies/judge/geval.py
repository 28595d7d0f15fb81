"""G-Eval: the mean score under a language model's probabilities of the allowed scores.

Source: Liu et al. 2023, "G-Eval: NLG Evaluation using GPT-4 with Better Human Alignment".
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from course_pkg.common.arguments import require_choice, require_integer, require_string


@dataclass(frozen=True)
class JudgeTask:
    """What to judge and on which scale: the parts of a G-Eval prompt that all texts share.

    Attributes:
        name: the criterion's name, such as "Coherence".
        criteria: what the scores mean.
        scores: the allowed scores, in increasing order.
        steps: the evaluation steps; None leaves that part out.
    """

    introduction: str
    name: str
    criteria: str
    scores: tuple[int, ...] = (1, 2, 3, 4, 5)
    steps: str | None = None

    def __post_init__(self) -> None:
        for field in ("introduction", "name", "criteria"):
            require_text(getattr(self, field), field)
        if self.steps is not None:
            require_text(self.steps, "steps")
        scores = tuple(self.scores) if isinstance(self.scores, Iterable) else (None,)
        if any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in scores):
            raise TypeError(f"scores must be integers of at least 0, got {self.scores!r}")
        if len(scores) < 2 or list(scores) != sorted(set(scores)):
            raise ValueError(f"scores must be two or more in increasing order, got {scores}")
        object.__setattr__(self, "scores", scores)

    @property
    def label(self) -> str:
        """The line of the form that the judge fills in."""
        return f"{self.name} ({self.scores[0]}-{self.scores[-1]}):"


def require_text(value: object, name: str) -> str:
    """Return the value if it is a string that is not blank."""
    if not require_string(value, name).strip():
        raise ValueError(f"{name} is empty; give a string with some text")
    return value


def build_prompt(task: JudgeTask, texts: Mapping[str, str]) -> str:
    """The prompt of G-Eval up to the form: task and criteria, steps, texts with titles."""
    if not isinstance(task, JudgeTask):
        raise TypeError(f"task must be a JudgeTask, got {task!r:.80}")
    if not isinstance(texts, Mapping):
        raise TypeError(f"texts must be a dict of title and text, got {texts!r:.80}")
    if not texts:
        raise ValueError('texts is empty; give at least one, such as {"Summary": "..."}')
    parts = [task.introduction, f"Evaluation criteria:\n{task.label} {task.criteria}"]
    if task.steps is not None:
        parts.append(f"Evaluation steps:\n{task.steps}")
    parts += [f"{title}:\n{require_text(text, title)}" for title, text in texts.items()]
    return "\n\n".join([*parts, "Evaluation form (scores ONLY):"])


ReadingMethod = Literal["auto", "probabilities", "samples"]


class JudgeError(RuntimeError):
    """A judge gave no answer, or an answer that can't be read as a score."""


class Judge(Protocol):
    """The methods of a judge; LocalJudge and EndpointJudge implement them."""

    def option_probabilities(
        self, prompt: str, start: str, options: Sequence[str]
    ) -> dict[str, float] | None:
        """Return each option's probability as the answer after `start`; None if not available."""

    def write(
        self, prompt: str, start: str, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[str]:
        """Return n answers that continue `start`, drawn at a temperature (0: greedy)."""


@dataclass(frozen=True)
class Reading:
    """The distribution of a judge's answer over the given options.

    Attributes:
        probabilities: one for each of `options`, adding up to 1.
        outside: of all other answers, before renormalizing; large if the question wasn't answered.
        method: "probabilities", or "samples" if answers were drawn and counted.
    """

    options: tuple[str, ...]
    probabilities: tuple[float, ...]
    outside: float
    method: str
    samples: int


@dataclass(frozen=True)
class JudgeScore:
    """A judge's verdict on one text: the score, and the reading that it is computed from."""

    scores: tuple[int, ...]
    reading: Reading
    prompt: str

    @property
    def score(self) -> float:
        """The mean of the allowed scores, weighted by their probabilities: G-Eval's score."""
        return math.fsum(s * p for s, p in self._pairs())

    @property
    def mode(self) -> int:
        """The most likely score (the lowest of several): the score without averaging."""
        return max(self._pairs(), key=lambda pair: pair[1])[0]

    @property
    def std(self) -> float:
        """The standard deviation of the distribution over scores: how uncertain the judge is."""
        return math.sqrt(math.fsum((s - self.score) ** 2 * p for s, p in self._pairs()))

    def _pairs(self) -> list[tuple[int, float]]:
        return list(zip(self.scores, self.reading.probabilities, strict=True))


def add_up(tokens: Mapping[str, float], options: Sequence[str]) -> dict[str, float]:
    """Add up each option's probability over single tokens: " 3" and "3" are the same answer.

    >>> add_up({"3": 0.5, " 3": 0.25, "The": 0.125, "4": 0.125}, ["2", "3", "4"])
    {'2': 0.0, '3': 0.75, '4': 0.125}
    """
    sums = dict.fromkeys(options, 0.0)
    for token, probability in tokens.items():
        if token.strip() in sums:
            sums[token.strip()] += probability
    return sums


def read_option(reply: str, options: Sequence[str], label: str = "") -> str | None:
    """The option that a reply begins with, or None; a range, a decimal or another scale is none.

    >>> [read_option(reply, ["4", "5"]) for reply in (" 4\\nbecause", "4.5", "4 out of 10", "4/5")]
    ['4', None, None, '4']
    """
    choice = "|".join(map(re.escape, sorted(options, key=len, reverse=True)))
    other_scale = rf"\s*(?:/|out of)(?!\s*{re.escape(options[-1])}\b)\s*\d"
    echo = rf"(?:{re.escape(label)})?"
    pattern = rf"[\s*\-]*{echo}[\s*]*({choice})(?!\w|[.,\-–]\d|{other_scale})"
    matched = re.match(pattern, reply)
    return matched[1] if matched else None


def ask(
    judge: Judge,
    prompt: str,
    label: str,
    options: Sequence[str],
    *,
    method: ReadingMethod = "auto",
    samples: int = 20,
    temperature: float = 1.0,
    seed: int = 0,
) -> Reading:
    """Ask a judge to complete `label`, after a prompt, with one of the options.

    Args:
        method: "probabilities" reads them from the model; "samples" draws and counts answers;
            "auto" uses probabilities if the judge has them.

    Raises:
        JudgeError: all options have probability 0, or no sample is an option.
    """
    if not hasattr(judge, "option_probabilities") or not hasattr(judge, "write"):
        raise TypeError(f"judge must be a judge, such as LocalJudge(*load()), got {judge!r:.80}")
    if isinstance(options, str) or len(set(options)) < max(1, len(options)):
        raise ValueError(f"options must be a list of different strings, got {options!r:.80}")
    require_choice(method, "method", ("auto", "probabilities", "samples"))
    probabilities = None
    if method != "samples":
        probabilities = judge.option_probabilities(prompt, label, options)
        if probabilities is None and method == "probabilities":
            raise JudgeError('this judge gives no probabilities; use method="samples"')
    drawn = 0
    if probabilities is None:
        require_integer(samples, "samples")
        settings = {"max_tokens": 8, "temperature": temperature, "seed": seed}
        replies = judge.write(prompt, label, n=samples, **settings)
        read = [read_option(reply, options, label) for reply in replies]
        if not any(read):
            raise JudgeError(
                f"none of {samples} answers is one of {list(options)}: {replies[:3]}; "
                "ask for the answer alone"
            )
        drawn = len(read)
        probabilities = {option: read.count(option) / drawn for option in options}
    valid = math.fsum(probabilities[option] for option in options)
    if not valid > 0:
        raise JudgeError(f"the judge gives probability 0 to all of {list(options)}")
    shares = tuple(probabilities[option] / valid for option in options)
    used = "samples" if drawn else "probabilities"
    return Reading(tuple(options), shares, max(0.0, 1 - valid), used, drawn)


def g_eval(judge: Judge, task: JudgeTask, texts: Mapping[str, str], **options) -> JudgeScore:
    """Score texts with G-Eval: the mean of the allowed scores under the judge's probabilities."""
    prompt = build_prompt(task, texts)
    scores = [str(score) for score in task.scores]
    return JudgeScore(task.scores, ask(judge, prompt, task.label, scores, **options), prompt)


def generate_steps(judge: Judge, task: JudgeTask, *, max_tokens: int = 200) -> JudgeTask:
    """Add evaluation steps that the judge writes from the task alone; read them before use."""
    prompt = f"{task.introduction}\n\nEvaluation criteria:\n{task.label} {task.criteria}"
    request = f"{prompt}\n\nWrite numbered evaluation steps for this task."
    steps = judge.write(request, "", n=1, max_tokens=max_tokens, temperature=0.0, seed=0)[0]
    if not steps.strip():
        raise JudgeError("the judge wrote no evaluation steps; write them yourself, as task.steps")
    return replace(task, steps=steps.strip())
