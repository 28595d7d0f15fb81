"""Cases and expected values of `bleu`. Texts are lists of words, so that no tokenizer matters."""

from operator import attrgetter
from random import Random

from course_pkg.grading.questions.draws import each_then_any
from course_pkg.metrics.bleu import BleuScore, corpus_bleu

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
    whole = ["the", big, place, end]
    after, runs = rng.choice(
        [
            (["the", place], []),
            (["the", place], [[place]]),
            (["the", big, place], [[big, place]]),
            (whole, [[big], [end]]),
            (whole, [[big, place], [end]]),
            (whole, [[big, place, end]]),
        ]
    )
    others = rng.sample(FILLERS, (len(runs) or 2) + rng.randint(0, 3))
    candidate = [others.pop()] if len(others) > len(runs) else []
    candidate += [noun, verb, on]
    for run in runs:
        candidate += [others.pop(), *run]
    candidate += others
    reference = ["the", noun, verb, on, *after, *TAIL][: len(candidate) + rng.randint(1, 5)]
    case = {"reference": " ".join(reference), "candidate": " ".join(candidate)}
    letters = len(case["candidate"]) / len(case["reference"])
    if abs(len(candidate) / len(reference) - letters) < 0.02:
        return one_reference(rng)  # counting letters would give the same penalty
    return case


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


def _bleu(inputs: dict, **options: str | bool) -> BleuScore:
    texts, references = (inputs[key] for key in sorted(inputs))  # hypotheses, then references
    if "hypotheses" not in inputs:
        texts = [texts]
        references = [references if isinstance(references, list) else [references]]
    references = [list(map(_string, own)) for own in references]
    return corpus_bleu(list(map(_string, texts)), references, tokenize="whitespace", **options)


def _string(text: str | list[str] | int) -> str:
    words = ["word"] * text if isinstance(text, int) else text
    return words if isinstance(words, str) else " ".join(words)


def _score(*fields: str, **options: str | bool):
    return lambda inputs: attrgetter(*fields)(_bleu(inputs, **options))


def counts_expected(inputs: dict) -> list[tuple[int, int]]:
    return list(zip(_bleu(inputs).matches, _bleu(inputs).totals, strict=True))


def by_hand_brevity_penalty_expected(case: dict) -> tuple[float, float]:
    swapped = dict(zip(case, reversed(case.values()), strict=True))
    return _bleu(case).brevity_penalty, _bleu(swapped).brevity_penalty


def by_hand_scores_expected(case: dict) -> tuple[float, float]:
    return _bleu(case, smoothing="none").score, _bleu(case, smoothing="exp").score


closest_length_expected = _score("reference_length")
brevity_penalty_expected = _score("brevity_penalty")
by_hand_two_references_expected = _score(
    "reference_length", "brevity_penalty", "score", smoothing="none"
)
corpus_expected = _score("score", smoothing="none")
sentence_expected = _score("score", effective_order=True)


def text(hypothesis: list[str], *references: list[str]) -> dict:
    """The inputs for one hypothesis with its references."""
    return {"hypothesis": hypothesis, "references": list(references)}


def pair(rng: Random, length: int, *at: int) -> dict:
    """A hypothesis and its one reference, of that length; at those places the words differ."""
    reference = rng.sample(WORDS, length)
    others = rng.sample([word for word in WORDS if word not in reference], length)
    return text([others[i] if i in at else word for i, word in enumerate(reference)], reference)


def corpus(rng: Random, *texts: dict) -> dict:
    """The inputs for several texts, in any order."""
    order = rng.sample(texts, len(texts))
    return {
        "hypotheses": [one["hypothesis"] for one in order],
        "references": [one["references"] for one in order],
    }


def counts_count(rng: Random, size: int) -> dict:
    """No word twice, two neighbors swapped; glued together, the ends would be equal."""
    at = rng.randrange(6 + size)
    ends = rng.sample([["butter", "cup"], ["butterc", "up"]], 2)
    reference = rng.sample(WORDS, 8 + size)
    hypothesis = [*reference[:at], reference[at + 1], reference[at], *reference[at + 2 : -1]]
    return text(hypothesis + ends[0], reference + ends[1])


def counts_clip(rng: Random, size: int) -> dict:
    """One reference and only two words, so that n-grams are repeated."""
    two = rng.sample(WORDS, 2)
    return text(rng.choices(two, k=7 + size), rng.choices(two, k=5 + size))


def counts_any(rng: Random, size: int) -> dict:
    """No word twice; each reference has a part of the hypothesis, the first one the smallest."""
    length = 7 + size + rng.randint(0, 2)
    words = rng.sample(WORDS, length + 3)
    i = rng.choice([2, 3])
    j = 5 if size == 2 else length
    parts = words[:i], words[i:j], words[j:length]
    references = [[*part, end] for part, end in zip(parts, words[-3:], strict=True)]
    return text(words[:length], *references[: 3 if size == 2 else 2])


def counts_maximum(rng: Random, size: int) -> dict:
    """The hypothesis says the same three times; each of two references says it once."""
    a, b, c, d, *phrase = rng.sample(WORDS, rng.randint(7, 9) + size)
    return text(phrase * 3, [a, *phrase, b], [c, *phrase, d])


def counts_short(rng: Random, size: int) -> dict:
    """A hypothesis of no, one or two words, which may be in the reference."""
    words = rng.sample(WORDS, 7)
    return text(rng.choice([words[3:5], words[4:6], words[5:]])[: size % 3], words[:5])


def closest_length_closest(rng: Random, size: int) -> dict:
    """Six lengths on both sides, the closest not at an end; one; all shorter; all longer."""
    c = rng.randint(12, 29)
    far = rng.sample(range(2, 10), 4)
    side = rng.choice([1, -1])
    signs = [[1, -1, side, side]] * 3 + [[side], [-1] * 4, [1] * 4]
    lengths = [c + sign * d for sign, d in zip(signs[size], far, strict=False)]
    if size < 3:
        lengths = [*rng.sample(lengths, 4), c + 10]
        lengths.insert(rng.randint(1, 3), c + (1, -1, 0)[size])
    return {"hypothesis_length": c, "reference_lengths": lengths}


def closest_length_ties(rng: Random, size: int) -> dict:
    """Two lengths equally close; the shorter one is the shortest and comes after the longer."""
    d = rng.randint(1, 3) + size
    c = d + rng.randint(3, 19)
    lengths = [c + i * d for i in rng.sample((4, 1, 1, 6), 4)]
    lengths.insert(rng.randint(lengths.index(c + d) + 1, 4), c - d)
    return {"hypothesis_length": c, "reference_lengths": lengths}


def brevity_penalty_shorter(rng: Random, size: int) -> dict:
    """c < r, and in the second case c < r/2."""
    c = rng.randint(3, 11) + 5 * size
    return {"hypothesis_length": c, "reference_length": c * (1 + size % 2) + rng.randrange(1, c)}


def brevity_penalty_longer(rng: Random, size: int) -> dict:
    """c > r; then c = r; then perhaps c < r."""
    r = rng.randint(3, 11) + 5 * size
    if size > 3 and rng.random() < 0.5:
        return brevity_penalty_shorter(rng, size)
    more = rng.randrange(1, r) if size != 3 else 0
    return {"hypothesis_length": r + more, "reference_length": r}


def brevity_penalty_empty(rng: Random, size: int) -> dict:
    """An empty hypothesis; one that is as long as the reference; then any of these."""
    r = rng.randint(2 + size, 29)
    c = r if each_then_any(rng, size, 2) else 0
    return {"hypothesis_length": c, "reference_length": r}


def corpus_geometric(rng: Random, size: int) -> dict:
    """One text, a little longer than its one reference."""
    one = pair(rng, 9 + 2 * size, rng.randrange(2), 7 + size)
    return corpus(rng, one | {"references": [one["references"][0][: 8 + size]]})


def corpus_pooled(rng: Random, size: int) -> dict:
    """Texts as long as their references; one has no match of order 4, one has two words."""
    good = [pair(rng, length, rng.randrange(2)) for length in range(9, 10 + size)]
    return corpus(rng, *good, pair(rng, rng.randint(5, 7), 2, 4), pair(rng, 2))


def corpus_lengths(rng: Random, size: int) -> dict:
    """Every precision is 1/2: one text matches and is too short, an equal one is too long."""
    n = rng.randint(6, 8) + size
    words = rng.sample(WORDS, 36)
    short = text(words[:n], words[: n + rng.randint(3, 6)])
    return corpus(rng, short, text(words[-n:], words[18 : 16 + n]))


def corpus_references(rng: Random, size: int) -> dict:
    """A text with three references, two of which match in part; and a text that is too short."""
    words = rng.sample(WORDS, 25)
    tail = rng.randint(1, 2)
    phrase = words[:5]
    one = words[5 : 5 + tail]
    other = words[7 : 7 + tail]
    rest = words[9:]
    own = rng.sample([[*other, *rest[: 7 + tail], *phrase], [*phrase, *one]], 2)
    own.insert(size % 2, [*rest, *rest][: 16 + 2 * tail])
    long = rng.sample(WORDS, 16)
    more = [pair(rng, 6 + i, i) for i in range(size)]
    return corpus(rng, text(phrase * 2 + one + other, *own), text(long[:7], long), *more)


def corpus_zero(rng: Random, size: int) -> dict:
    """Some words and pairs match, and nothing of order 4; then everything does; then any."""
    kind = size if size < 4 else rng.choice([0, 3])
    texts = [pair(rng, 6 + i % 2, *rng.choice([(2, 5), (3,)])) for i in range(1 + kind)]
    return corpus(rng, *texts) if kind < 3 else corpus(rng, pair(rng, 5))


def corpus_empty(rng: Random, size: int) -> dict:
    """One text is empty; the others match well and are a little short."""
    others = [pair(rng, rng.randint(7, 9) + i, 0) for i in range(1 + size)]
    short = [one | {"hypothesis": one["hypothesis"][:-1]} for one in others]
    return corpus(rng, text([], rng.sample(WORDS, 3 + size)), *short)


def corpus_nothing(rng: Random, size: int) -> dict:
    """All texts are empty; no word matches; every word does; then one of the last two."""
    kind = size if size < 3 else rng.choice([1, 2])
    texts = [pair(rng, n, *range(n if kind < 2 else 0)) for n in (5, 6)]
    return corpus(rng, *(one if kind else one | {"hypothesis": []} for one in texts))


def sentence_matched(rng: Random, size: int) -> dict:
    """All orders match; the closest of two references is longer, and in the last case shorter."""
    one = pair(rng, 10 + size, rng.randrange(2))
    whole = one["references"][0]
    c, r = [(8, 10), (9, 11), (12, 10)][size]
    return text(one["hypothesis"][:c], *rng.sample([whole[:r], whole[1:4]], 2))


def sentence_halving(rng: Random, size: int) -> dict:
    """Two or three orders without a match; in the last case one word shorter."""
    length = 6 + size + rng.randrange(2)
    one = pair(rng, length, *(range(1, length, 2) if size == 1 else (2, 5)))
    return one | {"hypothesis": one["hypothesis"][: length - 1 if size == 2 else length]}


def sentence_short(rng: Random, size: int) -> dict:
    """Two or three words without a match in the highest order; one word; then any of these."""
    length = rng.randint(2 + size % 2, 3) if size < 4 else rng.randint(1, 3)
    if size == 3 or length == 1:
        return pair(rng, 1)
    return pair(rng, length, rng.choice([0, length - 1]))


def sentence_nothing(rng: Random, size: int) -> dict:
    """An empty text; texts without a match; the reference itself; then one of these two."""
    same = size == 3 or (size > 3 and rng.random() < 0.5)
    one = pair(rng, 10, *range(0 if same else 10))
    return one if size else one | {"hypothesis": []}
