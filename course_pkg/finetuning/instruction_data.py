"""The course's instructions and dialogues, with the checks that their answers must meet.

They are JSON lines in the folders instructions and dialogues of course_pkg/data, where README.md
describes them. The splits share no topic. `instruction_checks` says whether a text follows an
instruction.

Chapter: finetuning/instructions.
"""

import json
from dataclasses import dataclass
from importlib import resources

from course_pkg.finetuning.instruction_checks import Check

SPLITS = {"instructions": ("train", "validation", "test"), "dialogues": ("train", "test")}


@dataclass(frozen=True)
class Instruction:
    """An instruction with an answer that follows it.

    domain: "course" for the course's subject, or "everyday". language: "en" or "zh", that of the
    prompt. task: what is asked for, such as "explain" or "convert". input: the text to work on,
    empty if the prompt needs none. checks: what `unmet_checks` verifies in an answer.
    """

    id: str
    topic: str
    domain: str
    language: str
    task: str
    prompt: str
    response: str
    checks: tuple[Check, ...]
    input: str = ""

    @property
    def user_turn(self) -> str:
        """The text that the model reads: the prompt, and below an empty line the input, if any."""
        return f"{self.prompt}\n\n{self.input}" if self.input else self.prompt


@dataclass(frozen=True)
class Dialogue:
    """A conversation of two to four user turns that ends with the assistant's answer.

    messages: dictionaries with `role` and `content`, for a chat template; the first may be a
    system turn. checks: what `unmet_checks` verifies in the last answer.
    """

    id: str
    topic: str
    domain: str
    language: str
    messages: tuple[dict[str, str], ...]
    checks: tuple[Check, ...]


def load_instructions(split: str = "train") -> list[Instruction]:
    """The instructions of one split, in the order of the file.

    split: "train" (300), "validation" (40) or "test" (60). Raises ValueError for another.

    >>> item = load_instructions("test")[5]
    >>> print(item.user_turn)
    A slide says the sentence below. Return it with the one wrong word replaced.
    <BLANKLINE>
    BLEU takes the arithmetic mean of the n-gram precisions.
    >>> item.response, len(item.checks)
    ('BLEU takes the geometric mean of the n-gram precisions.', 1)
    """
    return [
        Instruction(**row | {"checks": tuple(row["checks"])})
        for row in _rows("instructions", split)
    ]


def load_dialogues(split: str = "train") -> list[Dialogue]:
    """The dialogues of one split, in the order of the file.

    split: "train" (30) or "test" (10). Raises ValueError for another.

    >>> dialogue = load_dialogues("test")[0]
    >>> [message["role"] for message in dialogue.messages], dialogue.messages[-1]["content"]
    (['user', 'assistant', 'user', 'assistant'], '1')
    """
    return [
        Dialogue(**row | {"messages": tuple(row["messages"]), "checks": tuple(row["checks"])})
        for row in _rows("dialogues", split)
    ]


def _rows(name: str, split: str) -> list[dict]:
    if split not in SPLITS[name]:
        raise ValueError(f"the splits of {name} are {', '.join(SPLITS[name])}; got {split!r}")
    file = resources.files("course_pkg") / "data" / name / f"{split}.jsonl"
    # Only \n ends a line of the file: splitlines would also split at marks inside a text.
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
