"""Training and validation examples: drawn by a seed, and never the same question in both.

Chapter: finetuning/instructions.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from course_pkg.finetuning.near_duplicates import character_ngrams
from course_pkg.finetuning.own_data.errors import FinetuneError
from course_pkg.finetuning.own_data.examples import TokenExample

RUN = 16  # characters that two texts share by chance rarely
NEARLY = 0.5  # of an answer's runs
MOST = 200  # validation examples that are drawn; more would cost more time than they tell


@dataclass(frozen=True)
class Split:
    """The examples of both sides, each in the file's order."""

    train: tuple[TokenExample, ...]
    validation: tuple[TokenExample, ...]


def split_examples(examples: Sequence[TokenExample], share: float, seed: int) -> Split:
    """Draw a share of the examples for validation, at least two and about 200 at most.

    Examples with the same key stay together, so a question that occurs twice is on one side only.
    share: above 0 and below 1. Raises FinetuneError if there are fewer than four different
    questions, or if the share leaves nothing to train on.

    >>> from course_pkg.finetuning.own_data.examples import TokenExample
    >>> asked = [TokenExample(str(n), str(n // 2), "", "", "", ()) for n in range(20)]
    >>> split = split_examples(asked, 0.2, seed=0)
    >>> [example.id for example in split.validation]
    ['14', '15', '16', '17']
    """
    groups = list(dict.fromkeys(example.key for example in examples))
    if len(groups) < 4:
        why = " (those that begin with the same question count as one)"
        raise FinetuneError(
            f"too few different examples for a validation split: {len(groups)}"
            f"{why if len(groups) < len(examples) else ''}; give 4 or more, or a file of other "
            "examples with --validation"
        )
    wanted = min(max(2, round(share * len(examples))), MOST)
    random.Random(seed).shuffle(groups)
    counts = {key: 0 for key in groups}
    for example in examples:
        counts[example.key] += 1
    chosen: set[str] = set()
    size = 0
    for key in groups:
        if size >= wanted:
            break
        chosen.add(key)
        size += counts[key]
    train = tuple(example for example in examples if example.key not in chosen)
    if not train:
        raise FinetuneError(f"a validation share of {share:g} leaves nothing to train on: lower it")
    return Split(train, tuple(example for example in examples if example.key in chosen))


def given_split(
    train: Sequence[TokenExample], validation: Sequence[TokenExample], name: str
) -> Split:
    """The two sides from two files. name: of the validation file, for messages.

    Raises FinetuneError if a question is in both.
    """
    lines = {example.key: example.id for example in train}
    both = [example for example in validation if example.key in lines]
    if both:
        more = f", and {len(both) - 1} more like this" if len(both) > 1 else ""
        raise FinetuneError(
            f"{name}, {both[0].id}: the training data ask the same in {lines[both[0].key]}{more}; "
            "take such examples out of one of the files, or the validation loss shows memory"
        )
    return Split(tuple(train), tuple(validation))


def repeated_answers(split: Split) -> int:
    """How many validation answers are mostly in the training data, although the questions
    differ. Answers of fewer characters than a run, such as labels, don't count.

    >>> answers = ("Thank you for writing to us.", "Thank you for writing to us!", "Yes")
    >>> one, two, short = (TokenExample("", "", "", "", answer, ()) for answer in answers)
    >>> repeated_answers(Split((one, short), (one, short))), repeated_answers(Split((one,), (two,)))
    (1, 1)
    """
    known = {run for example in split.train for run in character_ngrams(example.reference, RUN)}
    return sum(
        len(example.reference) >= RUN
        and len((runs := character_ngrams(example.reference, RUN)) & known) >= NEARLY * len(runs)
        for example in split.validation
    )
