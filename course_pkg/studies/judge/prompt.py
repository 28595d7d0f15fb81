"""The prompt of G-Eval in three parts: the task, the evaluation steps, the texts to judge.

    task and criteria + evaluation steps + texts with titles + a form that the judge fills in

The first two parts are the same for all texts, so that their scores can be compared.

Source: Liu et al. 2023, "G-Eval: NLG Evaluation using GPT-4 with Better Human Alignment".
Chapter: metrics/judge.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from course_pkg.common.arguments import require_string


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
