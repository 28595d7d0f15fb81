"""A generated family of small tasks: a sentence about a train ticket becomes one line of data.

Anybody can draw new examples, so what a model has learned can be measured on examples that did not
exist when it was trained. Each sentence has one right answer, which can't be guessed without
reading the sentence.

Chapter: exercises.
"""

import json
from random import Random
from typing import Literal

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
SENTENCES = (
    "{first} {family} takes train {train} to {city}, seat {seat}.",
    "Seat {seat} on train {train} to {city} is for {first} {family}.",
    "Book {city} for {first} {family}: train {train}, seat {seat}.",
    "On train {train}, {first} {family} rides to {city} in seat {seat}.",
)
ANSWER = "{family} > {city} | {train} | {seat}"
SYSTEM = "Ticket"  # the system message: short, because a default one would cost 20 tokens
SPLITS = {"train": (240, 0), "held-out": (20, 1)}  # examples, and the seed that draws them


def draw_tickets(count: int, rng: Random) -> list[dict[str, str]]:
    """That many examples, each with a prompt and its answer.

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
        prompt = rng.choice(SENTENCES).format(**values)
        examples.append({"prompt": prompt, "answer": ANSWER.format(**values)})
    return examples


def ticket_file(split: Literal["train", "held-out"]) -> str:
    """The text of a JSON Lines file: one example a line, the same at every call.

    "train" is as collected: besides 240 examples it has blank lines, lines that repeat a prompt,
    and lines without an answer. "held-out" has 20 other examples, and nothing else. Raises
    ValueError for another split.

    >>> ticket_file("held-out").splitlines()[0][:37]
    '{"prompt": "On train 361, Elena Silva'
    """
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; expected one of {', '.join(SPLITS)}")
    count, seed = SPLITS[split]
    rng = Random(seed)
    examples = draw_tickets(count, rng)
    lines = [json.dumps(example) for example in examples]
    if split == "train":
        for example in rng.sample(examples, count // 20):
            faulty = rng.choice(("", json.dumps(example), json.dumps(example | {"answer": " "})))
            lines.insert(rng.randint(count // 2, len(lines)), faulty)
    return "\n".join(lines) + "\n"
