"""Typing errors in a text, at a chosen rate, to measure how robust a model is.

Each letter is hit with the same probability, independently of the others. A hit letter is swapped
with the next one, left out, doubled, or replaced by a neighbor on the keyboard, one of the four at
random. Everything that is no ASCII letter stays as it is, so that numbers, punctuation and spaces,
and with them the tokens' boundaries between words, keep their places.

A rate of typing errors is a perturbation whose size is known. Whether the meaning survives is for a
reader to say: at high rates, people can't read the text either.
Source: Belinkov and Bisk 2018, "Synthetic and Natural Noise Both Break Neural Machine Translation",
section 3, on swapped letters and keyboard noise. Chapter: metrics/overview.
"""

import random
import string

from course_pkg.common.arguments import require_between, require_string

ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
NEIGHBORS = {
    letter: row[max(place - 1, 0) : place] + row[place + 1 : place + 2]
    for row in ROWS
    for place, letter in enumerate(row)
}


def add_typos(text: str, rate: float, seed: int = 0) -> str:
    """The text with typing errors; the same seed gives the same ones.

    rate: the probability of an error at each letter, in [0, 1). Raises TypeError for a text that is
    no string, ValueError for another rate.

    >>> add_typos("Where do people hang wet laundry?", rate=0.2, seed=1)
    'hWere do epople hang wwte lsundry?'
    >>> add_typos("In 1969.", rate=0.0)
    'In 1969.'
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
