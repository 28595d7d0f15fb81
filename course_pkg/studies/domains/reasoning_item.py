"""One question that needs several steps, with its answer and a chain of thought that computes it.

Every generator of this folder makes such items from a seed. `draw_distinct` is the loop that they
share: it draws until there are enough questions, all of them different, none of them among those to
avoid, and with the answers of one kind as frequent as those of the other where that is wanted.

Chapter: evaluation/domains.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random

from course_pkg.common.arguments import require_integer

TRIES = 400  # draws for each item that is wanted, before we say that there are too few


@dataclass(frozen=True)
class ReasoningItem:
    """A question, the chain of thought that solves it, and the answer.

    kind: which generator made it. steps: how many steps the chain has, the length by which items
    are in or out of the domain. chain: one sentence or equation for each step.
    """

    kind: str
    question: str
    chain: str
    answer: str
    steps: int

    @property
    def reasoned(self) -> str:
        """What a model with a chain of thought should write.

        >>> ReasoningItem("sum", "2 + 3?", "2 + 3 = 5.", "5", 1).reasoned
        '2 + 3 = 5. The answer is 5.'
        """
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

    draw: makes one item from a generator. avoid: items whose questions must not occur, such as the
    examples in the prompt. balanced: the answers that should be equally frequent; if they don't
    divide `count`, some have one item more. Raises ValueError if the generator has too few
    different questions.

    >>> def draw(rng):
    ...     number = rng.randrange(10)
    ...     return ReasoningItem("even", f"Is {number} even?", "", "no" if number % 2 else "yes", 1)
    >>> items = draw_distinct(draw, 8, seed=0, balanced=("yes", "no"))
    >>> len({item.question for item in items}), [item.answer for item in items].count("yes")
    (8, 4)
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
