"""The small data sets written for this course: instructions with answers, and texts to evaluate on.

They are JSON lines under course_pkg/data, where README.md describes them. This module only reads
them; course_pkg.finetuning turns examples into batches.

Chapter: adapters/lora-training.
"""

import json
import re
from dataclasses import dataclass
from importlib import resources

EXAMPLE_SETS = {"navigator": ("train", "held-out")}
TEXT_SETS = {"passages": ("test",)}
LOG_FORMAT = re.compile(r"LOG: [^\n]+[.!?]\nCAUSE: [^\n]+[.!?]\nORDERS: [^\n]+[.!?]")


@dataclass(frozen=True)
class Example:
    """An instruction and the answer that a model should learn to give."""

    id: str
    topic: str
    prompt: str
    response: str


def load_examples(name: str = "navigator", split: str = "train") -> list[Example]:
    """The examples of one of the course's instruction sets, in the order of the file.

    name: "navigator" (120 training and 30 held-out questions, answered in the style of a
    ship's log). split: "train" or "held-out". Raises ValueError for an unknown name or split.

    >>> print(load_examples("navigator", "train")[0].response)
    LOG: Yeast eats sugar in the dough and gives off gas.
    CAUSE: Stretchy gluten holds the bubbles, so the loaf swells.
    ORDERS: Rest the dough somewhere warm for an hour.
    """
    return [Example(**row) for row in _rows(name, split, EXAMPLE_SETS)]


def load_texts(name: str = "passages", split: str = "test") -> list[str]:
    """The texts of one of the course's evaluation sets, from short to long.

    name: "passages" (40 texts of 3 to 60 words). Raises ValueError for an unknown name or split.

    >>> texts = load_texts("passages")
    >>> len(texts), texts[0]
    (40, 'The kettle is on.')
    """
    return [row["text"] for row in _rows(name, split, TEXT_SETS)]


def follows_log_format(text: str) -> bool:
    """Whether a text is exactly one entry of the navigator's log: three lines, one sentence each.

    White space around the text is ignored; any other text before or after it is not.

    >>> follows_log_format("LOG: Calm.\\nCAUSE: No wind.\\nORDERS: Row.")
    True
    >>> follows_log_format("LOG: Calm, because there is no wind.")
    False
    """
    return LOG_FORMAT.fullmatch(text.strip()) is not None


def _rows(name: str, split: str, known: dict[str, tuple[str, ...]]) -> list[dict[str, str]]:
    if split not in known.get(name, ()):
        sets = ", ".join(f"{name}/{split}" for name, splits in known.items() for split in splits)
        raise ValueError(f"there is no set {name}/{split}; the sets are {sets}")
    file = resources.files("course_pkg") / "data" / name / f"{split}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
