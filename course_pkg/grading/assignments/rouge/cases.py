"""`rouge`: the cases of its questions, and the right values from `course_pkg.metrics`.

Each draw isolates one property: texts of equal length hide swapped precision and recall.
"""

from collections import Counter
from dataclasses import astuple
from functools import partial
from random import Random
from typing import Any

from course_pkg.grading.questions.comparators import anything, number, row
from course_pkg.metrics.rouge.counts import f_measure
from course_pkg.metrics.rouge.lcs import lcs_length
from course_pkg.metrics.rouge.rouge_measures import rouge_l, rouge_n
from course_pkg.metrics.rouge.skip_bigrams import skip_bigrams

PATTERNS = (  # the reference / the candidate / another candidate, which repeats and reorders
    "the A is on the B / A B / the the is A A B",
    "every day the A with the B sees only the C / there the B sees the C / the C C the sees only A",
    "a A sees the B while the C naps / a A the C sees / the the B B while sees A",
    "the A by the B sees the C by the A / the A sees by the C / by the B B the A sees C C",
    "late when the A sees the B the C naps on the B / then the A the B naps when the C / "
    "naps naps the B the C when A the",
)
NOUNS = """bear bird boat cook dog farmer fox goat guard heron horse lamp miller nurse pilot poet
river ship singer stone tailor tree wolf writer"""

close = number(rtol=1e-6)
scores = row({"precision": close, "recall": close, "F": close})
sides = row({"precision": close, "recall": close, "F": anything()})
only_f = row({"precision": anything(), "recall": anything(), "F": close})


def by_hand(rng: Random | None) -> dict[str, Any]:
    """A student's reference, two candidates and β to score on paper; None: the documents' case."""
    if rng is None:
        texts = PATTERNS[0].replace("A", "cat").replace("B", "mat").split(" / ")
        return dict(zip(("reference", "candidate", "other"), texts, strict=True), beta=1.2)
    nouns = dict(zip(map(ord, "ABC"), rng.sample(NOUNS.split(), 3), strict=True))
    reference, candidate, other = rng.choice(PATTERNS).translate(nouns).split(" / ")
    reference += rng.choice(["", " again", " again nearby", " again nearby quietly"])
    candidate += rng.choice(["", " often", " often slowly"])
    other += rng.choice(["", " indeed", " so indeed", " so very indeed"])
    beta = rng.choice([0.5, 1.5, 2.0, 3.0])
    return {"reference": reference, "candidate": candidate, "other": other, "beta": beta}


def by_hand_expected(case: Any) -> dict[str, Any]:
    reference = case["reference"]

    def unigrams(text: str) -> Any:
        return astuple(rouge_n(text, reference, 1, tokenize="whitespace"))[:3]

    def longest(text: str) -> Any:
        return astuple(rouge_l(text, reference, tokenize="whitespace"))[:3]

    pairs = rouge_n(case["candidate"], reference, 2, tokenize="whitespace").overlaps[0]
    lcs = longest(case["candidate"])
    return {
        "rouge-1": unigrams(case["candidate"]),
        "rouge-2": (pairs.hypothesis, pairs.reference, pairs.matches),
        "rouge-l": (*lcs, f_measure(*lcs[:2], case["beta"])),
        "clipping-and-order": (unigrams(case["other"])[2], longest(case["other"])[2]),
    }


def rouge_n_expected(inputs: Any) -> Any:
    references = list(map(" ".join, inputs.get("references") or [inputs["reference"]]))
    candidate = " ".join(inputs["candidate"])
    rule = inputs.get("rule", "best")
    score = rouge_n(candidate, references, inputs["n"], multi=rule, tokenize="whitespace")
    return astuple(score)[:3]


def lcs_expected(inputs: Any) -> int:
    return lcs_length(inputs["a"], inputs["b"])


def rouge_l_expected(inputs: Any) -> Any:
    texts = " ".join(inputs["candidate"]), " ".join(inputs["reference"])
    return astuple(rouge_l(*texts, beta=inputs["beta"], tokenize="whitespace"))[:3]


def skip_bigrams_expected(inputs: Any) -> Any:
    pairs = Counter(skip_bigrams(inputs["tokens"], inputs["max_gap"]))
    return sorted([*pair, times] for pair, times in pairs.items())


def _some(rng: Random, *sizes: int) -> list[list[str]]:
    """Lists of that many words, no word in two of them."""
    pool = NOUNS.split() if sum(sizes) < 24 else [f"w{i}" for i in range(200)]
    rng.shuffle(pool)
    return [[pool.pop() for _ in range(size)] for size in sizes]


def ends(rng: Random, size: int, short: int, build: Any) -> dict[str, Any]:
    """Equal texts; one is short; the other is short; both are empty; nothing in common.

    Then the texts are equal, or have nothing in common.
    """
    text, other = _some(rng, rng.randint(3, 12), 3)
    few = other[:short]
    kind = size if size < 5 else rng.choice([0, 4])
    return build(*((text, text), (few, text), (text, few), ([], []), (text, other))[kind])


def _n_grams(n: int, candidate: list[str], reference: list[str]) -> dict[str, Any]:
    return {"candidate": candidate, "reference": reference, "n": n}


def rouge_n_sides(rng: Random, size: int) -> dict[str, Any]:
    """Different words, n = 1; the texts differ in length, the longer one in turn."""
    both, one, more = _some(rng, 1 + size, rng.randint(1, 2), rng.randint(3, 5))
    longer, shorter = both + more, both + one
    return _n_grams(1, shorter, longer) if size % 2 else _n_grams(1, longer, shorter)


def rouge_n_clipped(rng: Random, size: int) -> dict[str, Any]:
    """Each text repeats one of two words more often; equal lengths, so that P = R."""
    (often, rare), mine, yours = _some(rng, 2, 3, 3 + size)
    low = rng.randint(2, 4)
    mine += [often] * (low + 1 + size) + [rare]
    return _n_grams(1, mine, [often] * low + [rare] * 2 + yours)


def rouge_n_n_grams(rng: Random, size: int) -> dict[str, Any]:
    """Equal lengths: a common run, one that is reversed, and n-grams that are equal if joined."""
    n = 2 + size
    run, turned, before, one, other = _some(rng, n + rng.randint(1, 3), n, n - 2, 1, 1)
    texts = [run + one + before + ["sun", "flower"] + turned]
    texts += [turned[::-1] + other + before + ["sunf", "lower"] + run]
    return _n_grams(n, *rng.sample(texts, 2))


rouge_n_ends = partial(ends, short=1, build=partial(_n_grams, 2))


def several(rng: Random, size: int, rule: str) -> dict[str, Any]:
    """References with runs of the candidate: one is best in precision, one in recall, one in F.

    In the fourth case there is one reference, in the last nothing matches; no word repeats.
    """
    n = 1 + size % 2
    candidate, new = _some(rng, 6 + size, 12)
    whole = len(candidate)
    references = []
    kinds = [(whole, rng.randint(8, 11)), (n + 1, 0), (whole - 1, rng.randint(1, 2))]
    for run, own in [(0, 5), (0, 3)] if size == 4 else rng.sample(kinds, 1 if size == 3 else 3):
        start = rng.randint(0, whole - run)
        cut = rng.randint(0, own)
        words = rng.sample(new, own)
        references.append(words[:cut] + candidate[start : start + run] + words[cut:])
    return {"candidate": candidate, "references": references, "n": n, "rule": rule}


def lcs_gaps(rng: Random, size: int) -> dict[str, Any]:
    """One order, different words, each text with words of its own: no run is the whole."""
    common, *own = _some(rng, 3 + size + rng.randint(0, 2), 2 + size, 2 + size)
    cuts = rng.randint(1, len(common) - 1), rng.randint(1, len(common) - 1)
    a, b = ([*common[:i], *w[1:], *common[i:], w[0]] for i, w in zip(cuts, own, strict=True))
    return {"a": a, "b": b}


def lcs_order(rng: Random, size: int) -> dict[str, Any]:
    """Two runs of equal length that swap places: one of them can stay, not both."""
    one, two = _some(rng, *[1 + size + rng.randint(0, 2)] * 2)
    return {"a": one + two, "b": two + one}


def lcs_longest(rng: Random, size: int) -> dict[str, Any]:
    """Two words that repeat, in any order."""
    (words,) = _some(rng, 2)
    return {"a": rng.choices(words, k=3 + 2 * size), "b": rng.choices(words, k=4 + 2 * size)}


lcs_ends = partial(ends, short=0, build=lambda a, b: {"a": a, "b": b})


def lcs_fast(rng: Random, size: int) -> dict[str, Any]:
    """Long texts that agree at the beginning and nowhere else, with a limit on comparisons."""
    common, a, b = _some(rng, rng.randint(60, 79), rng.randint(30, 39), rng.randint(30, 39))
    return {"a": common + a, "b": common + b, "_most": 10 * len(common + a) * len(common + b)}


def _with_lcs(beta: float, candidate: list[str], reference: list[str]) -> dict[str, Any]:
    length = lcs_length(candidate, reference)
    return {"candidate": candidate, "reference": reference, "beta": beta, "lcs": length}


def two_orders(rng: Random, size: int, betas: Any) -> dict[str, Any]:
    """Texts of different lengths share words in two orders, one of them twice."""
    kept, moved, one, more = _some(rng, 2 + size, 2, 1, rng.randint(3, 5))
    longer, shorter = moved + kept + kept[:1] + more, kept + kept[:1] + moved + one
    texts = (shorter, longer) if size % 2 else (longer, shorter)
    return _with_lcs(rng.choice(betas[size]), *texts)


rouge_l_ends = partial(ends, short=0, build=partial(_with_lcs, 2.0))


def skip_bigrams_order(rng: Random, size: int) -> dict[str, Any]:
    """Different words, no limit."""
    return {"tokens": _some(rng, 3 + size)[0], "max_gap": None}


def skip_bigrams_gap(rng: Random, size: int) -> dict[str, Any]:
    """A gap of 0, 1, 2; words in alphabetical order. With 0, the last word occurs twice."""
    tokens = sorted(_some(rng, 4 + size)[0])
    return {"tokens": tokens if size else [*tokens, tokens[-1]], "max_gap": size}


def skip_bigrams_counts(rng: Random, size: int) -> dict[str, Any]:
    """Words in alphabetical order that repeat, no limit."""
    words = sorted(_some(rng, 2 + size)[0])
    return {"tokens": [w for w in words for _ in range(rng.randint(2, 3))], "max_gap": None}
