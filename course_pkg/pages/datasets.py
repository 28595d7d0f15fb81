"""The small data sets written for this course: instructions, texts, evaluation items, and tickets.

All but the tickets are JSON lines under course_pkg/data, where README.md describes them.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any, Literal

from course_pkg.common.arguments import require_integer

EXAMPLE_SETS = {"navigator": ("train", "held-out")}
TEXT_SETS = {"passages": ("test",), "perturbations": ("test",), "rated": ("test",)}
LOG_FORMAT = re.compile(r"LOG: [^\n]+[.!?]\nCAUSE: [^\n]+[.!?]\nORDERS: [^\n]+[.!?]")
FIRST_NAMES = (
    "Ada Ben Clara David Elena Felix Grace Hugo Irene Jonas Karin Liam Marta Nora Oscar Paula "
    "Ravi Sofia Tomas Uma Victor Wanda"
)
FAMILY_NAMES = (
    "Adler Brandt Costa Duval Ekberg Fischer Garcia Hansen Ivanov Jensen Keller Lopez Meyer Novak "
    "Olsen Peters Quinn Romano Silva Tanaka Vogel Weiss"
)
CITIES = (
    "Athens Berlin Cairo Dublin Geneva Hamburg Istanbul Lisbon London Madrid Milan Munich Oslo "
    "Paris Prague Rome Seville Turin Venice Vienna Warsaw Zurich"
)
TICKET_SENTENCES = (
    "{first} {family} takes train {train} to {city}, seat {seat}.",
    "Seat {seat} on train {train} to {city} is for {first} {family}.",
    "Book {city} for {first} {family}: train {train}, seat {seat}.",
    "On train {train}, {first} {family} rides to {city} in seat {seat}.",
)
TICKET_ANSWER = "{family} > {city} | {train} | {seat}"
TICKET_SYSTEM = "Ticket"  # the system message: short, because a default one would cost 20 tokens
TICKET_SPLITS = {"train": (240, 0), "held-out": (20, 1)}  # examples, and the seed that draws them


@dataclass(frozen=True)
class Example:
    """An instruction and the answer that a model should learn to give."""

    id: str
    topic: str
    prompt: str
    response: str


def load_examples(name: str = "navigator", split: str = "train") -> list[Example]:
    """The 120 "train" or 30 "held-out" questions of "navigator", answered as a ship's log."""
    return [Example(**row) for row in _rows(name, split, EXAMPLE_SETS)]


def load_texts(name: str = "passages", split: str = "test") -> list[str]:
    """The 40 texts of "passages", from short (3 words) to long (60)."""
    return [row["text"] for row in _rows(name, split, TEXT_SETS)]


@dataclass(frozen=True)
class Sentence:
    """A sentence with its hand-written paraphrase and negation."""

    id: str
    text: str
    paraphrase: str
    negation: str


def load_sentences() -> list[Sentence]:
    """Twelve sentences, each with a paraphrase and a negation."""
    return [Sentence(**row) for row in _rows("perturbations", "test", TEXT_SETS)]


@dataclass(frozen=True)
class RatedAnswer:
    """An answer to a question, and two ratings of it from 1 to 5.

    kind: "good", "short", "false" (well written) or "shuffled" (words in random order).
    """

    id: str
    kind: str
    question: str
    answer: str
    ratings: tuple[int, int]

    @property
    def mean(self) -> float:
        """The mean of the two ratings."""
        return sum(self.ratings) / len(self.ratings)


def load_rated_answers() -> list[RatedAnswer]:
    """Four answers, one of each kind, to each of three questions; rated before a judge ran."""
    rows = _rows("rated", "test", TEXT_SETS)
    return [RatedAnswer(**{**row, "ratings": tuple(row["ratings"])}) for row in rows]


def follows_log_format(text: str) -> bool:
    """Whether a text is exactly one entry of the navigator's log: three lines of a sentence."""
    return LOG_FORMAT.fullmatch(text.strip()) is not None


def draw_tickets(count: int, rng: Random) -> list[dict[str, str]]:
    """Examples of a generated task: a sentence about a train ticket becomes one line of data.

    >>> draw_tickets(1, Random(4))[0]["answer"]
    'Jensen > Dublin | 838 | 60D'
    """
    examples = []
    for _ in range(count):
        values = {
            "first": rng.choice(FIRST_NAMES.split()),
            "family": rng.choice(FAMILY_NAMES.split()),
            "city": rng.choice(CITIES.split()),
            "train": rng.randint(100, 999),
            "seat": f"{rng.randint(10, 99)}{rng.choice('ABCD')}",
        }
        prompt = rng.choice(TICKET_SENTENCES).format(**values)
        examples.append({"prompt": prompt, "answer": TICKET_ANSWER.format(**values)})
    return examples


def ticket_file(split: Literal["train", "held-out"]) -> str:
    """The tickets of a split as the text of a JSON Lines file, the same at every call.

    "train" is as collected: besides 240 examples it has blank lines, lines that repeat a prompt,
    and lines without an answer. "held-out" has 20 other examples, and nothing else.
    """
    if split not in TICKET_SPLITS:
        raise ValueError(f"there is no split {split!r}; expected one of {', '.join(TICKET_SPLITS)}")
    count, seed = TICKET_SPLITS[split]
    rng = Random(seed)
    examples = draw_tickets(count, rng)
    lines = [json.dumps(example) for example in examples]
    if split == "train":
        for example in rng.sample(examples, count // 20):
            faulty = rng.choice(("", json.dumps(example), json.dumps(example | {"answer": " "})))
            lines.insert(rng.randint(count // 2, len(lines)), faulty)
    return "\n".join(lines) + "\n"


def _rows(name: str, split: str, known: dict[str, tuple[str, ...]]) -> list[dict[str, str]]:
    if split not in known.get(name, ()):
        sets = ", ".join(f"{name}/{split}" for name, splits in known.items() for split in splits)
        raise ValueError(f"there is no set {name}/{split}; the sets are {sets}")
    file = resources.files("course_pkg") / "data" / name / f"{split}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


FOLDER = Path(__file__).parents[1] / "data/evaluation"


def read_records(name: str) -> list[dict[str, Any]]:
    """The records of course_pkg/data/evaluation/NAME.jsonl."""
    path = FOLDER / f"{name}.jsonl"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.jsonl")))
        raise ValueError(f"there is no evaluation data {name!r}; there are {known}")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def first_of_groups(records: Sequence[dict[str, Any]], count: int = 2) -> list[dict[str, Any]]:
    """The first `count` records of each group, in their order: fewer related items."""
    require_integer(count, "count")
    seen: Counter[str] = Counter()
    chosen = []
    for record in records:
        seen[record["group"]] += 1
        if seen[record["group"]] <= count:
            chosen.append(record)
    return chosen
