"""Generated questions that need several steps, and the scores and faults of their chains.

Sources: Wei et al. 2022, section 5; Patel et al. 2021 (SVAMP); Cobbe et al. 2021 (GSM8K); Mirzadeh
et al. 2024 (GSM-Symbolic). The names are the course's own list.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Literal

from course_pkg.common.arguments import (
    require_bool,
    require_choice,
    require_integer,
    require_list,
    require_string,
)
from course_pkg.evaluation.answer_extraction import Rule, extract
from course_pkg.evaluation.answer_match import exact_match

TRIES = 400  # draws for each item that is wanted, before we say that there are too few


@dataclass(frozen=True)
class ReasoningItem:
    """A question, the chain of thought that solves it in `steps` steps, and the answer."""

    kind: str
    question: str
    chain: str
    answer: str
    steps: int

    @property
    def reasoned(self) -> str:
        """What a model with a chain of thought should write."""
        return f"{self.chain} {self.direct}"

    @property
    def direct(self) -> str:
        """What a model should write that answers at once."""
        return f"The answer is {self.answer}."


def draw_distinct(
    draw: Callable[[Random], ReasoningItem],
    count: int,
    seed: int,
    avoid: Collection[ReasoningItem] = (),
    balanced: Sequence[str] = (),
) -> list[ReasoningItem]:
    """Different items, in a random order that the seed decides.

    Args:
        draw: makes one item from a generator.
        avoid: items whose questions must not occur, such as the examples in the prompt.
        balanced: the answers that should be equally frequent.
    """
    require_integer(count, "count")
    require_integer(seed, "seed", 0)
    rng = Random(seed)
    seen = {item.question for item in avoid}
    wanted = Counter(balanced[number % len(balanced)] for number in range(count) if balanced)
    items: list[ReasoningItem] = []
    for _ in range(TRIES * count):
        item = draw(rng)
        if item.question in seen or (balanced and not wanted[item.answer]):
            continue
        seen.add(item.question)
        wanted[item.answer] -= 1
        items.append(item)
        if len(items) == count:
            return items
    raise ValueError(
        f"only {len(items)} of {count} different questions were found in {TRIES * count} draws: "
        "ask for fewer, or give the generator more words or larger numbers"
    )


NAME_LIST = (
    "Adam Alan Alex Alice Amy Andrew Anna Arthur Barbara Ben Blake Brown Carl Carol Charles "
    "Chris Clark Cook Craig Daniel David Dean Diana Donald Douglas Edward Ellen Eric Felix Ford "
    "Frank George Grace Grant Greg Hall Harry Helen Henry Hill Howard Jack James Jane Jason Jim "
    "Joel John Jordan Joseph Karen Keith Kim King Larry Laura Lee Leon Lewis Linda Lisa Louis "
    "Luke Mark Martin Mary Max Michael Mike Miller Morgan Nancy Neil Nick Oliver Oscar Patrick "
    "Paul Peter Philip Ralph Ray Reed Richard Robert Roger Ross Roy Ruth Sam Scott Smith Steve "
    "Stuart Susan Taylor Ted Thomas Tim Tom Tony Victor Walter Ward William Wilson Wood"
)
NAMES = tuple(NAME_LIST.split())


def last_letter_item(words: Sequence[str]) -> ReasoningItem:
    """The item of these words; its chain names the last letter of each.

    >>> print(last_letter_item(["Amy", "Brown"]).reasoned)
    Amy ends in y. Brown ends in n. The answer is yn.
    """
    require_list(words, "words", "put the words into [ ]")
    if len(words) < 2 or not all(word and word[-1].isalpha() for word in words):
        raise ValueError(f"give two or more words that end in a letter, got {list(words)!r:.80}")
    question = f'Take the last letter of each word in "{" ".join(words)}" and join them.'
    letters = [word[-1].lower() for word in words]
    chain = " ".join(f"{word} ends in {at}." for word, at in zip(words, letters, strict=True))
    return ReasoningItem("last letters", question, chain, "".join(letters), len(words))


def last_letter_items(
    count: int,
    words: int,
    seed: int,
    avoid: Collection[ReasoningItem] = (),
    names: Sequence[str] = NAMES,
) -> list[ReasoningItem]:
    """Different items of so many different words each.

    >>> [item.answer for item in last_letter_items(3, words=4, seed=0)]
    ['hsgw', 'tyeh', 'ydys']
    """
    require_integer(words, "words", 2)
    if words > len(names):
        raise ValueError(f"{words} different words are wanted, but names has {len(names)}")

    def draw(rng: Random) -> ReasoningItem:
        return last_letter_item(rng.sample(names, words))

    return draw_distinct(draw, count, seed, avoid)


PEOPLE = tuple(name for name in NAMES if name not in ("Brown", "Cook", "Ford", "Hall", "Hill"))


def coin_flip_item(turns: Sequence[tuple[str, bool]]) -> ReasoningItem:
    """The item of these turns, each a name and whether that person flips the coin."""
    if not turns:
        raise ValueError("turns is empty: give at least one name with True or False")
    sentences = []
    chain = []
    heads = True
    for name, flips in turns:
        heads ^= require_bool(flips, f"whether {name} flips the coin")
        sentences.append(f"{name} {'flips' if flips else 'does not flip'} the coin.")
        chain.append(f"{name}: {'heads' if heads else 'tails'}.")
    question = f"A coin is heads up. {' '.join(sentences)} Is the coin still heads up?"
    answer = "yes" if heads else "no"
    return ReasoningItem("coin flips", question, " ".join(chain), answer, len(turns))


def coin_flip_items(
    count: int,
    people: int,
    seed: int,
    avoid: Collection[ReasoningItem] = (),
    names: Sequence[str] = PEOPLE,
) -> list[ReasoningItem]:
    """Different items of so many different people each; half of the answers are "yes"."""
    require_integer(people, "people")
    if people > len(names):
        raise ValueError(f"{people} different people are wanted, but names has {len(names)}")

    def draw(rng: Random) -> ReasoningItem:
        return coin_flip_item([(name, rng.random() < 0.5) for name in rng.sample(names, people)])

    return draw_distinct(draw, count, seed, avoid, balanced=("yes", "no"))


STORY_PEOPLE = ("Ada", "Ben", "Clara", "David", "Elena", "Felix", "Grace", "Hugo", "Irene", "Jonas")
THINGS = ("apples", "books", "buttons", "cards", "pencils", "shells", "stamps", "tickets")
OTHERS = ("chairs", "cups", "kites", "lamps", "maps", "spoons")
MOST = 200  # the largest intermediate result
SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
SENTENCES = {
    "add": ("{person} buys {n} more {things}.", "A friend brings {person} {n} {things}."),
    "subtract": ("{person} gives away {n} {things}.", "{person} loses {n} of the {things}."),
    "multiply": ("{person} works until there are {n} times as many {things}.",),
    "divide": ("{person} puts the {things} into {n} equal boxes and keeps one box.",),
}


def word_problem_item(rng: Random, steps: int, distractor: bool = False) -> ReasoningItem:
    """One problem of so many steps. distractor: add a quantity that the answer does not need.

    >>> print(word_problem_item(Random(5), steps=2, distractor=True).reasoned)
    27 / 3 = 9. 9 - 2 = 7. The answer is 7.
    """
    require_integer(steps, "steps")
    require_bool(distractor, "distractor")
    person = rng.choice(STORY_PEOPLE)
    things = rng.choice(THINGS)
    amount = rng.randint(5, 40)
    extra = f" and {rng.randint(2, 40)} {rng.choice(OTHERS)}" if distractor else ""
    sentences = [f"{person} has {amount} {things}{extra}."]
    chain = []
    for _ in range(steps):
        operation, number, result = _draw_step(rng, amount)
        words = rng.choice(SENTENCES[operation])
        sentences.append(words.format(person=person, n=number, things=things))
        chain.append(f"{amount} {SIGNS[operation]} {number} = {result}.")
        amount = result
    sentences.append(f"How many {things} does {person} have now?")
    question = " ".join(sentences)
    return ReasoningItem("word problem", question, " ".join(chain), str(amount), steps)


def word_problem_items(
    count: int,
    steps: int,
    seed: int,
    distractor: bool = False,
    avoid: Collection[ReasoningItem] = (),
) -> list[ReasoningItem]:
    """Different problems of so many steps each.

    >>> [item.answer for item in word_problem_items(3, steps=3, seed=0)]
    ['35', '176', '5']
    """
    return draw_distinct(lambda rng: word_problem_item(rng, steps, distractor), count, seed, avoid)


def _draw_step(rng: Random, amount: int) -> tuple[str, int, int]:
    """A random operation on the amount, its number, and its result, an integer from 1 to MOST."""
    numbers = {
        "add": range(2, min(20, MOST - amount) + 1),
        "subtract": range(1, min(20, amount - 1) + 1),
        "multiply": range(2, min(5, MOST // amount) + 1),
        "divide": [number for number in range(2, 10) if amount % number == 0],
    }
    operation = rng.choice([name for name, possible in numbers.items() if possible])
    number = rng.choice(numbers[operation])
    result = {
        "add": amount + number,
        "subtract": amount - number,
        "multiply": amount * number,
        "divide": amount // number,
    }[operation]
    return operation, number, result


Style = Literal["direct", "reasoned"]
STYLES = ("direct", "reasoned")
# Up to the end of the sentence or the line; a period inside a number belongs to it.
STATED = Rule("stated answer", r"\b[Aa]nswer is:?\s+([^\n]*?)(?:\.(?!\d)|\n|\Z)", "last")


def reasoning_prompt(
    item: ReasoningItem, examples: Sequence[ReasoningItem] = (), style: Style = "direct"
) -> str:
    """The text that a model continues: examples, "direct" or "reasoned", and then the question."""
    require_choice(style, "style", STYLES)
    if any(example.question == item.question for example in examples):
        raise ValueError(f"the question {item.question!r:.60} is also an example: leave it out")
    parts = [
        f"Question: {example.question}\nAnswer: {getattr(example, style)}" for example in examples
    ]
    return "\n\n".join([*parts, f"Question: {item.question}\nAnswer:"])


def score_reasoning(items: Sequence[ReasoningItem], texts: Sequence[str]) -> list[int]:
    """1 for each text whose last "The answer is …" is the item's, else 0; case doesn't count."""
    if len(items) != len(texts):
        raise ValueError(f"{len(items)} items and {len(texts)} texts: give one text for each item")
    return [int(_is_right(item, text)) for item, text in zip(items, texts, strict=True)]


def _is_right(item: ReasoningItem, text: str) -> bool:
    number = item.answer.isdigit()
    stated = extract(text, [STATED, "last number"] if number else [STATED])
    if stated is None:
        return False
    if not number:
        return exact_match(stated.answer.lower(), item.answer.lower(), "strip")
    digits = extract(stated.answer, ["last number"])
    return digits is not None and exact_match(digits.answer, item.answer, "number")


FAULTS = ("none", "wrong step", "too few steps", "too many steps", "wrong answer")
EQUATION = re.compile(r"(\d+(?:\.\d+)?)\s*([-+*/])\s*(\d+(?:\.\d+)?)\s*=\s*(-?\d+(?:\.\d+)?)")
ANSWER = re.compile(r"\b[Tt]he answer is\b")


@dataclass(frozen=True)
class Fault:
    """The first fault of a chain: one of FAULTS, and the step where it is, counted from 1."""

    name: str
    step: int


def first_fault(item: ReasoningItem, text: str) -> Fault:
    """The first fault of a text that should be `item.reasoned`; a text without an answer is wrong.

    >>> item = ReasoningItem("sum", "1 + 2 + 3?", "1 + 2 = 3. 3 + 3 = 6.", "6", 2)
    >>> first_fault(item, "1 + 2 = 3. 3 + 3 = 7. The answer is 7.")
    Fault(name='wrong step', step=2)
    """
    require_string(text, "text")
    wanted = _steps(item.chain)
    chain, *rest = ANSWER.split(text, maxsplit=1)
    steps = _steps(chain)
    for number, (right, written) in enumerate(zip(wanted, steps, strict=False), start=1):
        if written != right:
            return Fault("wrong step", number)
    if len(steps) < len(wanted):
        return Fault("too few steps", len(steps) + 1)
    if len(steps) > len(wanted):
        return Fault("too many steps", len(wanted) + 1)
    answer = "".join(rest[0].split()).rstrip(".") if rest else ""
    right_answer = answer == "".join(item.answer.split())
    return Fault("none" if right_answer else "wrong answer", len(wanted))


def check_equations(text: str) -> list[bool]:
    """Whether each equation "a op b = c" of a text is right, in order, computed exactly.

    >>> check_equations("12 / 3 = 4. 4 * 5 = 25. So it is 25.")
    [True, False]
    """
    verdicts = []
    for left, sign, right, result in EQUATION.findall(require_string(text, "text")):
        a, b, c = Fraction(left), Fraction(right), Fraction(result)
        if sign == "/":
            verdicts.append(b != 0 and a == b * c)
        else:
            verdicts.append({"+": a + b, "-": a - b, "*": a * b}[sign] == c)
    return verdicts


def _steps(chain: str) -> list[str]:
    """The sentences of a chain, without white space."""
    parts = ("".join(part.split()) for part in re.split(r"\.(?:\s|\Z)", chain))
    return [part for part in parts if part]
