"""Changes to texts, to see what a metric or a model notices.

Source: Belinkov and Bisk 2018, section 3, on swapped letters and keyboard noise.
"""

import random
import string

from course_pkg.common.arguments import require_between, require_choice, require_string
from course_pkg.pages.datasets import Sentence

PERTURBATIONS = (
    "identical",
    "paraphrased",
    "negated",
    "reordered",
    "truncated",
    "repeated",
    "another sentence",
)


def perturb(sentences: list[Sentence], perturbation: str, seed: int = 0) -> list[str]:
    """Apply one of the `PERTURBATIONS` to every sentence; "another sentence" takes the next one.

    >>> perturb([Sentence("a", "The cat sat here.", "A cat was here.", "No cat.")], "truncated")
    ['The cat']
    """
    require_choice(perturbation, "perturbation", PERTURBATIONS)
    generator = random.Random(seed)
    changed = []
    for sentence, following in zip(sentences, sentences[1:] + sentences[:1], strict=True):
        words = sentence.text.removesuffix(".").split()
        versions = {
            "identical": sentence.text,
            "paraphrased": sentence.paraphrase,
            "negated": sentence.negation,
            "reordered": " ".join(generator.sample(words, len(words))) + ".",
            "truncated": " ".join(words[: len(words) // 2]),
            "repeated": f"{sentence.text} {sentence.text}",
            "another sentence": following.text,
        }
        changed.append(versions[perturbation])
    return changed


ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
NEIGHBORS = {
    letter: row[max(place - 1, 0) : place] + row[place + 1 : place + 2]
    for row in ROWS
    for place, letter in enumerate(row)
}


def add_typos(text: str, rate: float, seed: int = 0) -> str:
    """The text with typing errors in letters, at a rate in [0, 1); the seed decides which.

    >>> add_typos("Where do people hang wet laundry?", rate=0.2, seed=1)
    'hWere do epople hang wwte lsundry?'
    """
    require_string(text, "text")
    require_between(rate, "rate", 0, 1, closed=True)
    generator = random.Random(seed)
    written = []
    rest = list(text)
    while rest:
        letter = rest.pop(0)
        if letter not in string.ascii_letters or generator.random() >= rate:
            written.append(letter)
            continue
        kind = generator.choice(("swap", "drop", "double", "neighbor"))
        if kind == "swap" and rest and rest[0] in string.ascii_letters:
            written += [rest.pop(0), letter]
        elif kind == "double":
            written += [letter, letter]
        elif kind == "neighbor":
            near = generator.choice(NEIGHBORS[letter.lower()])
            written.append(near.upper() if letter.isupper() else near)
        # "drop" writes nothing, and neither does a swap with what is no letter
    return "".join(written)
