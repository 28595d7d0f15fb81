"""Last-letter concatenation: "Amy Brown" → "yn".

Every word takes one step, so the number of words is the length. Examples have two words; tests with
two are in the domain, tests with three or four are out of it. The task is trivial for a program. A
language model sees tokens, not letters, so that it must know how each token is spelled.

Source: Wei et al. 2022, "Chain-of-Thought Prompting Elicits Reasoning in Large Language Models",
section 5, which draws words from lists of frequent names. The names here are the course's own list.
Chapter: evaluation/domains.
"""

from collections.abc import Collection, Sequence
from random import Random

from course_pkg.common.arguments import require_integer, require_list
from course_pkg.studies.domains.reasoning_item import ReasoningItem, draw_distinct

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

    Raises ValueError for fewer than two words, or one that does not end in a letter.

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

    avoid: items that must not occur, such as the examples. names: the words to draw from. Raises
    ValueError for fewer than two words, too few names, or too few different questions.

    >>> [item.answer for item in last_letter_items(3, words=4, seed=0)]
    ['hsgw', 'tyeh', 'ydys']
    """
    require_integer(words, "words", 2)
    if words > len(names):
        raise ValueError(f"{words} different words are wanted, but names has {len(names)}")

    def draw(rng: Random) -> ReasoningItem:
        return last_letter_item(rng.sample(names, words))

    return draw_distinct(draw, count, seed, avoid)
