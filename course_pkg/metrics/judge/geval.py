"""G-Eval: a language model fills in a form, and its probabilities of the scores are averaged.

    score = sum over s of s * p(s) / sum over s of p(s)        s runs over the allowed scores

The evaluation steps (the "chain of thought") are written once per task, by the model or by you,
and then serve for all texts. This module asks for a score and averages what comes back. It runs
no model itself (see judge_models, judge_endpoint) and compares no answers (see judge_bias).

Source: Liu et al. 2023, "G-Eval: NLG Evaluation using GPT-4 with Better Human Alignment".
Chapter: metrics/judge.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from course_pkg.metrics.judge.prompt import JudgeTask, build_prompt

Method = Literal["auto", "probabilities", "samples"]


class JudgeError(RuntimeError):
    """A judge gave no answer, or one that can't be read as a score."""


class Judge(Protocol):
    """What a judge must be able to do; a LocalJudge and an EndpointJudge are."""

    def option_probabilities(
        self, prompt: str, start: str, options: Sequence[str]
    ) -> dict[str, float] | None:
        """Probability that the answer, after `start`, is each option; None if it can't be had."""
        ...

    def write(
        self, prompt: str, start: str, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[str]:
        """n answers that continue `start`, drawn at a temperature (0: the likeliest)."""
        ...


@dataclass(frozen=True)
class Reading:
    """How a judge's answer is spread over the options that it was given.

    probabilities: one for each of `options`, adding up to 1. outside: what fell on anything but
    an option, before renormalizing; if it is large, the judge did not answer the question.
    method: "probabilities", or "samples" where answers were drawn and counted; samples: how many.
    """

    options: tuple[str, ...]
    probabilities: tuple[float, ...]
    outside: float
    method: str
    samples: int


@dataclass(frozen=True)
class JudgeScore:
    """A judge's verdict on one text: a score, and the reading that it is the mean of.

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
        """The likeliest score (the lowest of several): what plain form-filling reports."""
        return max(self._pairs(), key=lambda pair: pair[1])[0]

    @property
    def std(self) -> float:
        """Standard deviation of the distribution over scores: how undecided the judge is."""
        return math.sqrt(math.fsum((s - self.score) ** 2 * p for s, p in self._pairs()))

    def _pairs(self) -> list[tuple[int, float]]:
        return list(zip(self.scores, self.reading.probabilities, strict=True))


def add_up(tokens: Mapping[str, float], options: Sequence[str]) -> dict[str, float]:
    """Probability of each option among those of single tokens: " 3" and "3" are the same answer.

    tokens: token to probability. Tokens that are no option, blank space aside, are left out.

    >>> add_up({"3": 0.5, " 3": 0.25, "The": 0.125, "4": 0.125}, ["2", "3", "4"])
    {'2': 0.0, '3': 0.75, '4': 0.125}
    """
    sums = dict.fromkeys(options, 0.0)
    for token, probability in tokens.items():
        if token.strip() in sums:
            sums[token.strip()] += probability
    return sums


def read_option(reply: str, options: Sequence[str], label: str = "") -> str | None:
    """The option that a written reply begins with, or None; an echo of the label is passed over.

    A range ("4-5"), a decimal ("3.5") and a score out of something else than the last option
    ("4 out of 10", where 5 is the most) are no option.

    >>> read_option(" 4\\nbecause", ["3", "4"]), read_option("Clarity: 3", ["3", "4"], "Clarity:")
    ('4', '3')
    >>> [read_option(reply, ["4", "5"]) for reply in ("45", "4.5", "4 out of 10", "4/5")]
    [None, None, None, '4']
    """
    choice = "|".join(map(re.escape, sorted(options, key=len, reverse=True)))
    other_scale = rf"\s*(?:/|out of)(?!\s*{re.escape(options[-1])}\b)\s*\d"
    echo = rf"(?:{re.escape(label)})?"
    pattern = rf"[\s*\-]*{echo}[\s*]*({choice})(?!\w|[.,\-–]\d|{other_scale})"
    found = re.match(pattern, reply)
    return found[1] if found else None


def ask(
    judge: Judge,
    prompt: str,
    label: str,
    options: Sequence[str],
    *,
    method: Method = "auto",
    samples: int = 20,
    temperature: float = 1.0,
    seed: int = 0,
) -> Reading:
    """Have a judge complete `label` after a prompt by one of the options.

    method: "probabilities" reads them off the model; "samples" draws that many answers, at that
    temperature and seed, and counts; "auto" takes the first where the judge offers it.
    Raises JudgeError if no probability, or no sample, falls on an option.
    """
    if method not in ("auto", "probabilities", "samples"):
        raise ValueError(f'method must be "auto", "probabilities" or "samples", got {method!r}')
    found = None
    if method != "samples":
        found = judge.option_probabilities(prompt, label, options)
        if found is None and method == "probabilities":
            raise JudgeError('this judge gives no probabilities of tokens; take method="samples"')
    drawn = 0
    if found is None:
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ValueError(f"samples must be a whole number of at least 1, got {samples!r}")
        settings = {"max_tokens": 8, "temperature": temperature, "seed": seed}
        replies = judge.write(prompt, label, n=samples, **settings)
        read = [read_option(reply, options, label) for reply in replies]
        if not any(read):
            raise JudgeError(f"none of {samples} answers is one of {list(options)}: {replies[:3]}")
        drawn = len(read)
        found = {option: read.count(option) / drawn for option in options}
    valid = math.fsum(found[option] for option in options)
    if not valid > 0:
        raise JudgeError(f"the judge gives no probability to any of {list(options)}")
    shares = tuple(found[option] / valid for option in options)
    used = "samples" if drawn else "probabilities"
    return Reading(tuple(options), shares, max(0.0, 1 - valid), used, drawn)


def g_eval(
    judge: Judge,
    task: JudgeTask,
    texts: Mapping[str, str],
    *,
    method: Method = "auto",
    samples: int = 20,
    temperature: float = 1.0,
    seed: int = 0,
) -> JudgeScore:
    """Score texts by G-Eval: the mean of the allowed scores under the judge's probabilities.

    texts: title to text, such as {"Source": ..., "Summary": ...}. method, samples, temperature,
    seed: as in `ask`; the paper drew 20 answers at 1.0 from GPT-4, which gave no probabilities.
    Raises JudgeError if nothing of the answer falls on an allowed score.
    Source: Liu et al. 2023, equation 1.

    >>> from course_pkg.lm.load import load
    >>> from course_pkg.metrics.judge.local import LocalJudge
    >>> task = JudgeTask("Rate an answer.", "Clarity", "1 is confusing, 3 is clear.", (1, 2, 3))
    >>> verdict = g_eval(LocalJudge(*load("tiny")), task, {"Answer": "Boil it."})
    >>> 1 <= verdict.score <= 3, verdict.reading.method
    (True, 'probabilities')
    """
    prompt, options = build_prompt(task, texts), [str(score) for score in task.scores]
    settings = {"method": method, "samples": samples, "temperature": temperature, "seed": seed}
    return JudgeScore(task.scores, ask(judge, prompt, task.label, options, **settings), prompt)


def generate_steps(judge: Judge, task: JudgeTask, *, max_tokens: int = 200) -> JudgeTask:
    """The task with evaluation steps that the judge has written, before it sees any text.

    Read them before you use them: every score will rest on them. Raises JudgeError for no answer.
    Source: Liu et al. 2023, section 2 (auto chain-of-thoughts).
    """
    prompt = f"{task.introduction}\n\nEvaluation criteria:\n{task.label} {task.criteria}"
    request = f"{prompt}\n\nWrite numbered evaluation steps for this task."
    steps = judge.write(request, "", n=1, max_tokens=max_tokens, temperature=0.0, seed=0)[0]
    if not steps.strip():
        raise JudgeError("the judge wrote no evaluation steps; write them yourself, as task.steps")
    return replace(task, steps=steps.strip())
