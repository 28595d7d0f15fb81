"""The course's instructions and dialogues, with the checks that their answers must meet.

course_pkg/data/README.md describes them. The splits share no topic. `instruction_checks` says
whether a text follows an instruction.

Chapter: finetuning/instructions.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from course_pkg.common.arguments import require_choice
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

    >>> load_instructions("test")[5].response
    'BLEU takes the geometric mean of the n-gram precisions.'
    """
    return [Instruction(**row) for row in _rows("instructions", split)]


def load_dialogues(split: str = "train") -> list[Dialogue]:
    """The dialogues of one split, in the order of the file.

    split: "train" (30) or "test" (10). Raises ValueError for another.

    >>> [message["role"] for message in load_dialogues("test")[0].messages]
    ['user', 'assistant', 'user', 'assistant']
    """
    return [Dialogue(**row) for row in _rows("dialogues", split)]


def _rows(name: str, split: str) -> Iterator[dict]:
    require_choice(split, "split", SPLITS[name])
    file = resources.files("course_pkg") / "data" / name / f"{split}.jsonl"
    # Only \n ends a line of the file: splitlines would also split at marks inside a text.
    for line in filter(None, file.read_text(encoding="utf-8").split("\n")):
        row = json.loads(line)
        yield {
            field: tuple(value) if isinstance(value, list) else value
            for field, value in row.items()
        }
