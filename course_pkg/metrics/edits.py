"""Sentences, and what is done to them to see which metric notices: paraphrase, negation and others.

The paraphrases keep the meaning and change the words; the negations keep the words and turn the
meaning round. Both were written by hand for this course. Word order, half a sentence and a sentence
said twice are made here, from a seed. Nothing here scores anything.

Chapter: metrics/comparison.
"""

import json
import random
from dataclasses import dataclass
from importlib import resources

EDITS = (
    "identical",
    "paraphrased",
    "negated",
    "reordered",
    "truncated",
    "repeated",
    "another sentence",
)


@dataclass(frozen=True)
class EditedText:
    """A sentence with its hand-written paraphrase and negation."""

    id: str
    text: str
    paraphrase: str
    negation: str


def load_edited() -> list[EditedText]:
    """The course's twelve sentences, each with a paraphrase and a negation.

    >>> len(load_edited())
    12
    """
    file = resources.files("course_pkg") / "data" / "edits" / "test.jsonl"
    return [EditedText(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def edited(texts: list[EditedText], edit: str, seed: int = 0) -> list[str]:
    """Every sentence after one of `EDITS`, in order.

    reordered: the words shuffled, the full stop kept. truncated: the first half of the words.
    repeated: said twice. another sentence: that of the next. seed: for the shuffling. Raises
    ValueError for an edit that is none.

    >>> one = EditedText("a", "The cat sat here.", "A cat was here.", "No cat sat here.")
    >>> edited([one], "truncated"), edited([one], "repeated")
    (['The cat'], ['The cat sat here. The cat sat here.'])
    """
    if edit not in EDITS:
        raise ValueError(f"no edit is called {edit!r}; there are: {', '.join(EDITS)}")
    rng = random.Random(seed)
    following = [t.text for t in texts[1:] + texts[:1]]
    return [_apply(t, edit, rng, other) for t, other in zip(texts, following, strict=True)]


def _apply(text: EditedText, edit: str, rng: random.Random, other: str) -> str:
    words = text.text.removesuffix(".").split()
    match edit:
        case "identical":
            return text.text
        case "paraphrased":
            return text.paraphrase
        case "negated":
            return text.negation
        case "reordered":
            return " ".join(rng.sample(words, len(words))) + "."
        case "truncated":
            return " ".join(words[: len(words) // 2])
        case "repeated":
            return f"{text.text} {text.text}"
        case _:
            return other
