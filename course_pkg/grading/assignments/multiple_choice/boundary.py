"""`multiple-choice`: contexts and options with a vocabulary, and where the course divides them.

Chapter: exercises.
"""

from random import Random
from types import SimpleNamespace
from typing import Any

from course_pkg.evaluation.option_boundary import encode_options
from course_pkg.grading.assignments.multiple_choice.student import encode


def expected(inputs: dict[str, Any]) -> dict[str, Any]:
    """The course's division of the tokens, which are their own ids here."""
    tokenizer: Any = _Tokenizer(inputs["vocabulary"])
    try:
        found = encode_options(tokenizer, inputs["context"], inputs["options"], delimiter="")
    except ValueError:
        return {"raised": "ValueError"}
    counts = [len(option.ids) - option.start for option in found]
    return {"raised": "nothing", "start": found[0].start, "counts": counts}


class _Tokenizer:
    """What `encode_options` needs of a tokenizer."""

    bos_token = eos_token = None
    decode = "".join

    def __init__(self, vocabulary: list[str]) -> None:
        self.vocabulary = vocabulary

    def __call__(self, text: str, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(input_ids=encode(text, self.vocabulary))


def texts(rng: Random, size: int, kind: str) -> dict[str, Any]:
    """Syllables as tokens. joined: a token of the last one, or two, and an option's first.

    At first that option has one syllable, so that all of it is in the joined token. spaces: two
    that are tokens of their own. empty: an option without text, then of a space; then there is
    none, or in every second case.
    """
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    parts = rng.sample(syllables, 10)
    context = parts[:4]
    options = [parts[4:5], parts[5:7], parts[7 : 8 + size % 3]]
    vocabulary = [*parts, " ", "er"]
    if kind == "joined":
        merged = context[-1 - (size == 2) :]
        vocabulary.append("".join([*merged, options[size > 0][0]]))
    written = ["".join(option) for option in options]
    if kind == "empty":
        if size < 3 or (size > 3 and rng.random() < 0.5):
            written.insert(rng.randrange(4), "" if size % 3 < 2 else " ")
    elif size:
        rng.shuffle(written)
    rng.shuffle(vocabulary)
    spaces = " " * (1 + size // 2) if kind == "spaces" else ""
    return {"vocabulary": vocabulary, "context": "".join(context) + spaces, "options": written}
