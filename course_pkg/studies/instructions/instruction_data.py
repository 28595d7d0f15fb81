"""The course's instructions and dialogues, and the checks that their answers must meet.

course_pkg/data/README.md describes them and lists the kinds of checks. The splits share no topic.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from course_pkg.common.arguments import require_choice, require_integer, require_string

HAN = "\u4e00-\u9fff"
WIDE_MARKS = "\u3000-\u303f\uff00-\uffef\u2018-\u201d"  # 。，、：《》 and curly quotes
RUN = re.compile(rf"[{HAN}]|[^\s{HAN}{WIDE_MARKS}]+")
# No mark before the first, or a long row of marks would be read again from each of them.
SENTENCE_END = re.compile(r"(?<![.!?])[.!?]+[\"')\]]*(?=\s|$)|[。！？]+[”’）]*")

COUNTS = ("sentences", "bullets", "numbered")
CHOICES = {"case": ("lower", "upper"), "language": ("en", "zh")}
TEXTS = ("contains", "excludes", "ends_with", "matches", "equals")
KINDS = ("words", *COUNTS, "json_keys", *CHOICES, *TEXTS)

Check = Mapping[str, Any]


def count_words(text: str) -> int:
    """The number of words: runs of characters between spaces, and each Chinese character.

    >>> count_words("- Train in 4-bit, then merge."), count_words("LoRA 只训练两个矩阵。")
    (5, 8)
    """
    return sum(re.search(r"\w", run) is not None for run in RUN.findall(text))


def count_sentences(text: str) -> int:
    """The number of pieces with a word in them, cut where a period, ! or ? ends a word or the text.

    >>> count_sentences('It costs 4.5 bits. "Really?" Yes'), count_sentences("好。为什么？")
    (3, 2)
    """
    return sum(re.search(r"\w", piece) is not None for piece in SENTENCE_END.split(text))


def unmet_checks(text: str, checks: Iterable[Check]) -> list[Check]:
    """The checks that a text does not meet, in their order.

    Args:
        checks: dictionaries with the keys `kind`, one of `KINDS`, and `value`.

    >>> unmet_checks("Ranking costs time.", [{"kind": "contains", "value": "rank"}])
    [{'kind': 'contains', 'value': 'rank'}]
    """
    stripped = require_string(text, "text").strip()
    return [check for check in checks if not _meets(stripped, check)]


def _meets(text: str, check: Check) -> bool:
    if not isinstance(check, Mapping) or set(check) != {"kind", "value"}:
        raise ValueError(f"a check is a dictionary with the keys kind and value, got {check!r:.80}")
    kind = check["kind"]
    value = check["value"]
    _check_value(kind, value)
    lines = text.splitlines()
    match kind:
        case "words":
            return value[0] <= count_words(text) <= value[1]
        case "sentences":
            return count_sentences(text) == value
        case "bullets":
            return len(lines) == value and all(re.match(r"- \S", line) for line in lines)
        case "numbered":
            numbered = enumerate(lines, start=1)
            in_order = all(re.match(rf"{number}\. \S", line) for number, line in numbered)
            return len(lines) == value and in_order
        case "contains":
            return _contains(text, value)
        case "excludes":
            return not _contains(text, value)
        case "ends_with":
            return text.endswith(value)
        case "json_keys":
            return _json_keys(text) == set(value)
        case "case":
            return text.islower() if value == "lower" else text.isupper()
        case "language":
            han = len(re.findall(rf"[{HAN}]", text))
            latin = sum(re.search(r"[A-Za-z]", run) is not None for run in RUN.findall(text))
            return han > latin if value == "zh" else latin > 0 and han == 0
        case "matches":
            return re.fullmatch(value, text) is not None
        case "equals":
            return _plain(text) == _plain(value)


def _check_value(kind: Any, value: Any) -> None:
    require_choice(kind, "the kind of a check", KINDS)
    if kind == "words":
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError(f"words needs the value [least, most], got {value!r:.80}")
        least, most = (require_integer(number, "each value of words") for number in value)
        if least > most:
            raise ValueError(f"words needs the smaller number first, got {value!r}")
    elif kind in COUNTS:
        require_integer(value, f"the value of {kind}")
    elif kind == "json_keys":
        if not isinstance(value, list | tuple) or not all(isinstance(key, str) for key in value):
            raise ValueError(f"json_keys needs a list of strings, got {value!r:.80}")
    elif kind in CHOICES:
        require_choice(value, f"the value of {kind}", CHOICES[kind])
    elif not isinstance(value, str) or not value:
        raise ValueError(f"{kind} needs a string that is not empty, got {value!r:.80}")
    if kind == "matches":
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"matches needs a regular expression, not {value!r:.60}") from error


def _contains(text: str, value: str) -> bool:
    # Beside a Latin letter or digit of the value, no other may stand: "rank" is not in "ranking".
    before = r"(?<![A-Za-z0-9])" if re.match(r"[A-Za-z0-9]", value) else ""
    after = r"(?![A-Za-z0-9])" if re.search(r"[A-Za-z0-9]$", value) else ""
    return re.search(before + re.escape(value) + after, text, re.IGNORECASE) is not None


def _json_keys(text: str) -> set[str] | None:
    """The keys of a JSON object; None for any other text."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return set(parsed) if isinstance(parsed, dict) else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".。")


SPLITS = {"instructions": ("train", "validation", "test"), "dialogues": ("train", "test")}


@dataclass(frozen=True)
class Instruction:
    """An instruction with an answer that follows it.

    Attributes:
        domain: "course" for the course's subject, or "everyday".
        task: what is asked for, such as "explain" or "convert".
        checks: what `unmet_checks` verifies in an answer.
        input: the text to work on, empty if the prompt needs none.
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

    Attributes:
        messages: dictionaries with `role` and `content`, for a chat template.
        checks: what `unmet_checks` verifies in the last answer.
    """

    id: str
    topic: str
    domain: str
    language: str
    messages: tuple[dict[str, str], ...]
    checks: tuple[Check, ...]


def load_instructions(split: str = "train") -> list[Instruction]:
    """The instructions of "train" (300), "validation" (40) or "test" (60)."""
    return [Instruction(**row) for row in _rows("instructions", split)]


def load_dialogues(split: str = "train") -> list[Dialogue]:
    """The dialogues of "train" (30) or "test" (10), in the order of the file."""
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
