"""Arithmetic word problems from templates, with as many steps as you ask for.

One step is the shape of SVAMP: a story with two quantities, one operation, and, if `distractor` is
set, a third quantity that has nothing to do with the question. Several steps are the shape of
GSM8K: each works on the result of the step before, and the solution has one equation for each. All
numbers are integers of at least 1, and divisions have no remainder.

Template items are cheap and can't be in a training set, but their language is poor: they test
arithmetic and distraction, and say little about reading.

Sources: Patel et al. 2021, "Are NLP Models Really Able to Solve Simple Math Word Problems?"
(SVAMP); Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems" (GSM8K); Mirzadeh et
al. 2024, "GSM-Symbolic", for templates. Chapter: evaluation/domains.
"""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from course_pkg.common.arguments import require_bool, require_integer
from course_pkg.studies.domains.reasoning_item import ReasoningItem, draw_distinct

PEOPLE = ("Ada", "Ben", "Clara", "David", "Elena", "Felix", "Grace", "Hugo", "Irene", "Jonas")
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


@dataclass(frozen=True)
class Step:
    """One operation on what there is: before, the operation's name, its number, and after."""

    before: int
    operation: str
    number: int
    after: int

    @property
    def equation(self) -> str:
        """The step as an equation.

        >>> Step(12, "divide", 3, 4).equation
        '12 / 3 = 4.'
        """
        return f"{self.before} {SIGNS[self.operation]} {self.number} = {self.after}."


def word_problem_item(rng: Random, steps: int, distractor: bool = False) -> ReasoningItem:
    """One problem of so many steps. distractor: add a quantity that the answer does not need.

    rng: a seeded generator, which is changed. Raises ValueError for fewer than one step.

    >>> item = word_problem_item(Random(5), steps=2, distractor=True)
    >>> for sentence in item.question.split(". "):
    ...     print(sentence)
    Jonas has 27 pencils and 35 chairs
    Jonas puts the pencils into 3 equal boxes and keeps one box
    Jonas loses 2 of the pencils
    How many pencils does Jonas have now?
    >>> print(item.reasoned)
    27 / 3 = 9. 9 - 2 = 7. The answer is 7.
    """
    require_integer(steps, "steps")
    require_bool(distractor, "distractor")
    person = rng.choice(PEOPLE)
    things = rng.choice(THINGS)
    amount = rng.randint(5, 40)
    extra = f" and {rng.randint(2, 40)} {rng.choice(OTHERS)}" if distractor else ""
    sentences = [f"{person} has {amount} {things}{extra}."]
    chain = []
    for _ in range(steps):
        step = _draw_step(rng, amount)
        words = rng.choice(SENTENCES[step.operation])
        sentences.append(words.format(person=person, n=step.number, things=things))
        chain.append(step.equation)
        amount = step.after
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
    """Different problems of so many steps each; arguments and errors as for the functions above.

    >>> [item.answer for item in word_problem_items(3, steps=3, seed=0)]
    ['35', '176', '5']
    """
    return draw_distinct(lambda rng: word_problem_item(rng, steps, distractor), count, seed, avoid)


def _draw_step(rng: Random, amount: int) -> Step:
    """A random operation on the amount whose result is an integer from 1 to MOST."""
    numbers = {
        "add": range(2, min(20, MOST - amount) + 1),
        "subtract": range(1, min(20, amount - 1) + 1),
        "multiply": range(2, min(5, MOST // amount) + 1),
        "divide": [number for number in range(2, 10) if amount % number == 0],
    }
    operation = rng.choice([name for name, possible in numbers.items() if possible])
    number = rng.choice(numbers[operation])
    after = {
        "add": amount + number,
        "subtract": amount - number,
        "multiply": amount * number,
        "divide": amount // number,
    }[operation]
    return Step(amount, operation, number, after)
