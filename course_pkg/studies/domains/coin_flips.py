"""Coin flips: a coin is heads up, people flip it or don't, is it still heads up?

Each person takes one step, so the number of people is the length. The answer is the parity of the
flips: one flip that is missed turns it over, and a guess is right half of the time. The answers of
a set are balanced, so that "no" alone gets one half.

Source: Wei et al. 2022, "Chain-of-Thought Prompting Elicits Reasoning in Large Language Models",
section 5. Chapter: evaluation/domains.
"""

from collections.abc import Collection, Sequence
from random import Random

from course_pkg.common.arguments import require_bool, require_integer, require_list, require_string
from course_pkg.studies.domains.last_letters import NAMES
from course_pkg.studies.domains.reasoning_item import ReasoningItem, draw_distinct

PEOPLE = tuple(name for name in NAMES if name not in ("Brown", "Cook", "Ford", "Hall", "Hill"))


def coin_flip_item(turns: Sequence[tuple[str, bool]]) -> ReasoningItem:
    """The item of these turns, each a name and whether that person flips the coin.

    The chain follows the coin. Raises ValueError for no turn, TypeError for other types.

    >>> item = coin_flip_item([("Amy", True), ("Tom", False)])
    >>> print(item.question)
    A coin is heads up. Amy flips the coin. Tom does not flip the coin. Is the coin still heads up?
    >>> print(item.reasoned)
    Amy: tails. Tom: tails. The answer is no.
    """
    require_list(turns, "turns", "put pairs of a name and True or False into [ ]")
    if not turns:
        raise ValueError("turns is empty: give at least one name with True or False")
    sentences = []
    chain = []
    heads = True
    for name, flips in turns:
        require_string(name, "a name")
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
    """Different items of so many different people each; half of the answers are "yes".

    avoid: items that must not occur, such as the examples. names: the people to draw from. Raises
    ValueError for too few names, or too few different questions.

    >>> [item.answer for item in coin_flip_items(4, people=3, seed=0)].count("yes")
    2
    """
    require_integer(people, "people")
    if people > len(names):
        raise ValueError(f"{people} different people are wanted, but names has {len(names)}")

    def draw(rng: Random) -> ReasoningItem:
        return coin_flip_item([(name, rng.random() < 0.5) for name in rng.sample(names, people)])

    return draw_distinct(draw, count, seed, avoid, balanced=("yes", "no"))
