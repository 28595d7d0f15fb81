"""The students' own cases of `bleu`, small enough to count on paper.

The numbers that are asked for vary: those of a classmate rarely fit.

Chapter: exercises.
"""

from random import Random

NOUNS = ("cat", "dog", "fox", "boy", "girl", "horse", "child", "farmer")
PLACES = ("mat", "bench", "table", "roof", "bridge", "stairs", "gate", "path")
VERBS = ("sat", "slept", "stood", "waited", "lay", "rested")
PREPOSITIONS = ("on", "under", "near", "behind", "beside", "by")
ADJECTIVES = ("big", "small", "brown", "white", "gray")
ENDS = ("today", "again", "outside", "alone")
WORDS = [*NOUNS, *PLACES, *VERBS, *PREPOSITIONS, *ADJECTIVES, *ENDS]

FILLERS = ("a", "just", "once", "also", "then", "quite", "so")  # in no reference
TAIL = ["early", "this", "morning", "without", "any", "real", "noise"]  # in no candidate


def one_reference(rng: Random | None) -> dict:
    """A shorter candidate that shares a run of three words, or two runs, and no run of four.

    The shared runs and both lengths vary, so that hardly two students have the same numbers.
    """
    if rng is None:
        return {"reference": "the cat sat on the mat", "candidate": "a cat sat on mat"}
    pools = NOUNS, VERBS, PREPOSITIONS, ADJECTIVES, PLACES, ENDS
    noun, verb, on, big, place, end = map(rng.choice, pools)
    r, more = rng.choice(
        [
            (["the", place], []),
            (["the", place], [[place]]),
            (["the", big, place], [[big, place]]),
            (["the", big, place, end], [[big], [end]]),
            (["the", big, place, end], [[big, place], [end]]),
            (["the", big, place, end], [[big, place, end]]),
        ]
    )
    runs = [[noun, verb, on], *more]
    others = rng.sample(FILLERS, len(more) + 2 * (not more) + rng.randint(0, 3))
    before = [others.pop() for _ in range(len(others) > len(more))]
    c = before + runs[0] + [word for run in more for word in [others.pop(), *run]] + others
    r = ["the", noun, verb, on, *r, *TAIL][: len(c) + rng.randint(1, 5)]
    if abs(len(c) / len(r) - len(" ".join(c)) / len(" ".join(r))) < 0.02:
        return one_reference(rng)  # counting letters would give the same penalty
    return {"reference": " ".join(r), "candidate": " ".join(c)}


def two_references(rng: Random | None) -> dict:
    """A candidate that repeats itself; the closest reference is longer, the other one shorter.

    Four words in a row match, or BLEU without smoothing would be 0 whatever the penalty is.
    """
    if rng is None:
        references = ["there is a black cat on the mat", "the cat likes the mat"]
        return {"candidate": "the cat the cat on the mat", "references": references}
    noun, on, place, end = map(rng.choice, (NOUNS, PREPOSITIONS, PLACES, ENDS))
    tail = [noun, *["sitting", "waiting"][: rng.randint(0, 1)], on, "the", place]
    tail += [end][: rng.randint(0, 1)]
    more = rng.choice([[], ["indeed"], ["very", "much"]])
    others = rng.sample(FILLERS, rng.randint(0, 3))
    candidate = ["the", noun, "the", *tail, *others[:1], *more, *others[1:]]
    other = ["the", noun, "likes", "the", place, *more]
    r = len(candidate) + rng.randint(1, min(2, len(candidate) - len(other) - 1))
    adjectives = rng.sample(ADJECTIVES, rng.randint(1, 2))
    closest = ["there", "is", "a", *adjectives, *tail, *TAIL][:r]
    if closest[3 + len(adjectives) :][:4] != tail[:4]:
        return two_references(rng)
    return {
        "candidate": " ".join(candidate),
        "references": rng.sample([" ".join(closest), " ".join(other)], 2),
    }
