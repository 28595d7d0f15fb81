"""G-Eval: the mean score under a language model's probabilities of the allowed scores.

    prompt = task and criteria + evaluation steps + texts with titles + a form to fill in
    score  = sum over s of s * p(s) / sum over s of p(s)        s: each of the allowed scores

The first two parts of the prompt are the same for all texts, so that their scores can be compared.
This module asks a judge for a score and computes the mean. It does not run models (see `local`) or
compare answers (see `bias`).

Source: Liu et al. 2023, "G-Eval: NLG Evaluation using GPT-4 with Better Human Alignment". Chapter:
metrics/judge.
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

    introduction: the task, in a sentence or two. name: the criterion's name, such as "Coherence".
    criteria: what the scores mean. steps: the evaluation steps; None leaves that part out.
    scores: the allowed scores, two or more integers of at least 0 in increasing order.
    Raises TypeError or ValueError for an empty text or other scores.

    >>> JudgeTask("Rate an answer.", "Clarity", "1 is confusing, 3 is clear.", (1, 2, 3)).label
    'Clarity (1-3):'
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
            raise ValueError(
                "scores must be two or more integers in increasing order, such as (1, 2, 3), "
                f"got {scores}"
            )
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
    """Build the prompt of G-Eval up to the form: task and criteria, steps, texts with titles.

    texts: title to text, in the order in which they are shown; a reference is also such a text.
    Raises ValueError if there is no text or one is empty, TypeError for arguments of other types.
    Source: Liu et al. 2023, figure 1.

    >>> task = JudgeTask("Rate an answer.", "Clarity", "1 is confusing, 3 is clear.", (1, 2, 3))
    >>> build_prompt(task, {"Answer": "Boil it for ten minutes."}).splitlines()[-2:]
    ['', 'Evaluation form (scores ONLY):']
    """
    if not isinstance(task, JudgeTask):
        raise TypeError(f"task must be a JudgeTask, got {task!r:.80}")
    if not isinstance(texts, Mapping):
        raise TypeError(
            'texts must be a dict of title and text, such as {"Summary": "..."}, '
            f"got {texts!r:.80}"
        )
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
        ...

    def write(
        self, prompt: str, start: str, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[str]:
        """Return n answers that continue `start`, drawn at a temperature (0: greedy)."""
        ...


@dataclass(frozen=True)
class Reading:
    """The distribution of a judge's answer over the given options.

    probabilities: one for each of `options`, adding up to 1. outside: the probability of all other
    answers, before renormalizing; if it is large, the judge did not answer the question.
    method: "probabilities", or "samples" if answers were drawn and counted; samples: how many.
    """

    options: tuple[str, ...]
    probabilities: tuple[float, ...]
    outside: float
    method: str
    samples: int


@dataclass(frozen=True)
class JudgeScore:
    """A judge's verdict on one text: the score, and the reading that it is computed from.

    >>> reading = Reading(("1", "2", "3"), (0.25, 0.0, 0.75), 0.1, "probabilities", 0)
    >>> verdict = JudgeScore((1, 2, 3), reading, "the prompt")
    >>> verdict.score, verdict.mode, round(verdict.std, 3)
    (2.5, 3, 0.866)
    """

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

    tokens: token to probability. Other tokens are left out.

    >>> add_up({"3": 0.5, " 3": 0.25, "The": 0.125, "4": 0.125}, ["2", "3", "4"])
    {'2': 0.0, '3': 0.75, '4': 0.125}
    """
    sums = dict.fromkeys(options, 0.0)
    for token, probability in tokens.items():
        if token.strip() in sums:
            sums[token.strip()] += probability
    return sums


def read_option(reply: str, options: Sequence[str], label: str = "") -> str | None:
    """Return the option that a reply begins with, or None; a repeated label is skipped.

    A range ("4-5"), a decimal ("3.5") and a score on another scale ("4 out of 10", where the last
    option is 5) are not options.

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

    method: "probabilities" reads them from the model; "samples" draws that many answers,
    with the given temperature and seed, and counts them; "auto" uses probabilities if the
    judge has them.
    Raises JudgeError if all options have probability 0, or no sample is an option; TypeError or
    ValueError for another judge, options that are not different, or another method.
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
    """Score texts with G-Eval: the mean of the allowed scores under the judge's probabilities.

    texts: title to text, such as {"Source": ..., "Summary": ...}. options: the keywords of `ask`;
    the paper drew 20 samples at temperature 1.0 from GPT-4, which gave no probabilities.
    Raises JudgeError if all allowed scores have probability 0.
    Source: Liu et al. 2023, equation 1.

    >>> from course_pkg.lm.load import load
    >>> from course_pkg.studies.judge.local import LocalJudge
    >>> task = JudgeTask("Rate an answer.", "Clarity", "1 is confusing, 3 is clear.", (1, 2, 3))
    >>> 1 <= g_eval(LocalJudge(*load("tiny")), task, {"Answer": "Boil it."}).score <= 3
    True
    """
    prompt = build_prompt(task, texts)
    scores = [str(score) for score in task.scores]
    return JudgeScore(task.scores, ask(judge, prompt, task.label, scores, **options), prompt)


def generate_steps(judge: Judge, task: JudgeTask, *, max_tokens: int = 200) -> JudgeTask:
    """Add evaluation steps to a task; the judge writes them from the task alone.

    Read them before you use them, because they influence every score. Raises JudgeError if the
    judge writes nothing. Source: Liu et al. 2023, section 2 (auto chain-of-thoughts).
    """
    prompt = f"{task.introduction}\n\nEvaluation criteria:\n{task.label} {task.criteria}"
    request = f"{prompt}\n\nWrite numbered evaluation steps for this task."
    steps = judge.write(request, "", n=1, max_tokens=max_tokens, temperature=0.0, seed=0)[0]
    if not steps.strip():
        raise JudgeError("the judge wrote no evaluation steps; write them yourself, as task.steps")
    return replace(task, steps=steps.strip())
