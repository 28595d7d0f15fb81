"""`evaluation-plan`: its cases; right values are those of `course_pkg.evaluation`."""

import re
from random import Random
from statistics import NormalDist
from typing import Any

from course_pkg.evaluation.comparison import holm, mcnemar_exact
from course_pkg.evaluation.statistics import Interval, wilson_interval
from course_pkg.grading.questions.draws import each_then_any
from course_pkg.studies.evaluation_plan.requirements import Requirement, check_facts

Inputs = dict[str, Any]
NAMES = ["amber", "birch", "cedar", "daisy", "ebony", "flint", "grove", "hazel", "iris", "juniper"]
THINGS = ["kite", "line", "reel", "tail", "frame", "sail", "spar", "bag"]


# 1 Verdicts


def verdict_expected(inputs: Inputs) -> str:
    """The verdict of the course's requirement."""
    low, high = inputs["low"], inputs["high"]
    requirement = Requirement("score", inputs["direction"], inputs["threshold"])
    return requirement.decide(Interval((low + high) / 2, low, high, 0.95))


def draw_interval(rng: Random, size: int, direction: str) -> Inputs:
    """Above the threshold, below it, around it with the middle on the wrong side; then any."""
    kind = each_then_any(rng, size, 3)
    threshold = rng.randint(60, 80) / 100
    width = rng.randint(6, 15) / 100
    low = (threshold + 0.03, threshold - width - 0.03, threshold - width / 4)[kind]
    if kind == 2 and rng.random() < 0.5:
        low = threshold - 3 * width / 4
    return {"low": low, "high": low + width, "threshold": threshold, "direction": direction}


def verdict_border(rng: Random, size: int) -> Inputs:
    """The lower bound on the threshold, or the upper one; at least, or at most; then any."""
    kind = each_then_any(rng, size, 4)
    threshold = rng.randint(60, 80) / 100
    width = rng.randint(6, 15) / 100
    low, high = ((threshold, threshold + width), (threshold - width, threshold))[kind % 2]
    direction = ("at least", "at most")[kind // 2]
    return {"low": low, "high": high, "threshold": threshold, "direction": direction}


# 2 The fewest items


def fewest_expected(inputs: Inputs) -> int:
    """The first number for which Wilson's lower bound reaches the threshold."""
    wrong = inputs["wrong"]
    level = 2 * NormalDist().cdf(inputs["z"]) - 1
    items = wrong + 1
    while wilson_interval(items - wrong, items, level).low < inputs["threshold"]:
        items += 1
    return items


def fewest_perfect(rng: Random, size: int) -> Inputs:
    """No wrong answer; last, one item is enough."""
    threshold = rng.randint(71, 96) / 100 if size < 2 else rng.randint(5, 20) / 100
    return {"threshold": threshold, "wrong": 0, "z": (2.576, 1.645, 1.96)[size]}


def fewest_mistakes(rng: Random, size: int) -> Inputs:
    """One to nine wrong answers."""
    wrong = rng.randint(1, 3) + 3 * size
    return {"threshold": rng.randint(71, 93) / 100, "wrong": wrong, "z": rng.choice([1.96, 1.645])}


# 3 Facts


def facts_expected(inputs: Inputs) -> tuple[list[int], list[str]]:
    """What the course's check finds, with the wordings as plain texts."""

    def missing(wordings: list[str]) -> bool:
        return not check_facts(inputs["text"], [list(map(re.escape, wordings))]).has_all_facts

    facts = [k for k, wordings in enumerate(inputs["required"]) if missing(wordings)]
    return facts, [wording for wording in inputs["forbidden"] if not missing([wording])]


def _fact(text: str, wordings: list[str]) -> Inputs:
    """One fact, whose first wording is forbidden too: both lists are made by the same rules."""
    return {"text": text, "required": [wordings], "forbidden": wordings[:1]}


def facts_wordings(rng: Random, size: int) -> Inputs:
    """The first, the last or none of the wordings; then any of these."""
    thing, other = rng.sample(THINGS, 2)
    wordings = [f"{thing} free", f"no {thing} fee", f"{thing} for nothing"]
    text = (wordings[0], wordings[2], f"a {other}")[each_then_any(rng, size, 3)]
    return _fact(f"You get {text} here.", wordings)


def facts_every(rng: Random, size: int) -> Inputs:
    """Several facts, of which two or three are missing."""
    words = rng.sample(THINGS, 5)
    missing = rng.sample(range(5), 2 + size % 2)
    said = [word for k, word in enumerate(words) if k not in missing]
    text = f"We have {' and '.join(said)}."
    return {"text": text, "required": [[word] for word in words], "forbidden": []}


def facts_words(rng: Random, size: int) -> Inputs:
    """The wording within a longer number or word; then it may also stand alone after that."""
    days = rng.randint(11, 89)
    thing = rng.choice(THINGS)
    text, wording = (
        (f"It takes 1{days} days.", f"{days} days"),
        (f"We sell {thing}work.", thing),
        (f"It is a super{thing}.", thing),
        (f"It comes on day {days}0.", f"day {days}"),
        (f"Its name is {thing}_{days}.", thing),
    )[each_then_any(rng, size, 5)]
    if size == 5 or (size > 5 and rng.random() < 0.5):
        text += f" It is {wording}."
    return _fact(text, [wording])


def facts_case(rng: Random, size: int) -> Inputs:
    """Capital letters in the answer, in the wording, or in both; of another word; then any."""
    thing, other = rng.sample(THINGS, 2)
    in_answer, in_wording = (
        (str.upper, str),
        (str, str.title),
        (str.title, str.upper),
    )[each_then_any(rng, size, 3)]
    said = thing if size < 3 else other if size == 3 else rng.choice([thing, other])
    return _fact(f"It is a {in_answer(said)} here.", [in_wording(thing)])


def facts_signs(rng: Random, size: int) -> Inputs:
    """A price, a share, or a full stop that is no wild card; another number; then any."""
    number, other = rng.sample(range(11, 90), 2)
    said = number if size < 3 else other if size == 3 else rng.choice([number, other])
    wording = ("${}", f"{{}}% ({rng.choice(THINGS)})", "${}.5")[each_then_any(rng, size, 3)]
    return _fact(f"You pay {wording.format(said)} now.", [wording.format(number)])


def facts_forbidden(rng: Random, size: int) -> Inputs:
    """Two or three forbidden statements are there, in another order than they are listed."""
    words = rng.sample(THINGS, 5)
    said = rng.sample(words, 2 + size % 2)
    text = f"It has a {' and a '.join(said)}."
    return {"text": text, "required": [], "forbidden": words}


# 4 Better systems


def better_expected(inputs: Inputs) -> list[str]:
    """Those with an adjusted p-value of at most alpha and a higher score."""
    baseline, systems = inputs["baseline"], inputs["systems"]
    p_values = []
    for scores in systems.values():
        pairs = list(zip(scores, baseline, strict=True))
        p_values.append(mcnemar_exact(sum(s > b for s, b in pairs), sum(s < b for s, b in pairs)))
    clear = [name for name, p in zip(systems, holm(p_values), strict=True) if p <= inputs["alpha"]]
    return [name for name in clear if sum(systems[name]) > sum(baseline)]


def _systems(rng: Random, counts: list[tuple[int, int]], alpha: float = 0.05) -> Inputs:
    """Systems with these wins and losses, in any order, on 60 or more items."""
    half = rng.randint(30, 40)
    baseline = [1] * half + [0] * half
    rng.shuffle(baseline)
    wrong = [k for k, score in enumerate(baseline) if not score]
    right = [k for k, score in enumerate(baseline) if score]
    systems = {}
    for name, (wins, losses) in zip(rng.sample(NAMES, len(counts)), counts, strict=True):
        scores = list(baseline)
        for k in rng.sample(wrong, wins) + rng.sample(right, losses):
            scores[k] = 1 - scores[k]
        systems[name] = scores
    mixed = dict(rng.sample(list(systems.items()), len(systems)))
    return {"baseline": baseline, "systems": mixed, "alpha": alpha}


def better_paired(rng: Random, size: int) -> Inputs:
    """One system: clear; clear with one tail only; with a p-value equal to an alpha above 0.05.

    Then one that is clear or not.
    """
    unclear = rng.choice([(5, 0), (7, 1), (9, 2), (10, 3)])
    wins = rng.randint(4, 5)
    clear = rng.choice([(9, 1), (10, 1), (8, 0)])
    counts = (clear, unclear, (wins, 0), *[rng.choice([clear, unclear])] * 4)[size]
    return _systems(rng, [counts], 2 / 2**wins if size == 2 else 0.05)


def better_direction(rng: Random, size: int) -> Inputs:
    """Clearly worse; not clear beside a lower score and an equal run; one of each; then any."""
    worse = rng.choice([(0, 9), (0, 10), (1, 12)])
    counts = ([worse], [(6, 0), (1, 2), (0, 0)], [worse, rng.choice([(8, 0), (9, 0)])])
    counts = counts[size if size < 3 else rng.choice([0, 2])]
    return _systems(rng, counts)


def better_holm(rng: Random, size: int) -> Inputs:
    """All three are clear; none is; two of two are; then all, none, or two of three."""
    every, none, two = [(7, 0), (9, 1), (6, 0)], [(9, 1), (6, 0), (5, 0)], [(9, 0), (7, 0), (5, 0)]
    counts = (every, none, [(9, 1), (6, 0)], *[rng.choice([every, none, two])] * 3)[size]
    return _systems(rng, counts)


def better_stop(rng: Random, size: int) -> Inputs:
    """One is clear, and the others only if one goes on; none; one of four."""
    counts = ([(8, 0), (6, 0), (6, 0)], [(6, 0), (6, 0)], [(9, 0), (9, 1), (9, 1), (9, 1)])[size]
    return _systems(rng, counts)
