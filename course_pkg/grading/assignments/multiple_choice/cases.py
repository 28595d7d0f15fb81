"""`multiple-choice`: its cases; right values are those of `course_pkg.evaluation`."""

import math
from fractions import Fraction
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from course_pkg.evaluation import multiple_choice
from course_pkg.evaluation.option_boundary import encode_options
from course_pkg.evaluation.statistics import standard_error
from course_pkg.grading.assignments.multiple_choice.student import encode
from course_pkg.grading.questions.comparators import Comparator, anything, number, row
from course_pkg.grading.questions.draws import normal_arrays
from course_pkg.grading.questions.plain_values import Array
from course_pkg.studies.likelihood_and_generation.confidence import expected_calibration_error

Inputs = dict[str, Any]
CLOSE = number(rtol=1e-5, atol=1e-6)


def boundary_expected(inputs: dict[str, Any]) -> dict[str, Any]:
    """The course's division of the tokens, which are their own ids here."""
    tokenizer: Any = _Tokenizer(inputs["vocabulary"])
    try:
        encoded = encode_options(tokenizer, inputs["context"], inputs["options"], delimiter="")
    except ValueError:
        return {"raised": "ValueError"}
    counts = [len(option.ids) - option.start for option in encoded]
    return {"raised": "nothing", "start": encoded[0].start, "counts": counts}


class _Tokenizer:
    """What `encode_options` needs of a tokenizer."""

    bos_token = eos_token = None
    decode = "".join

    def __init__(self, vocabulary: list[str]) -> None:
        self.vocabulary = vocabulary

    def __call__(self, text: str, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(input_ids=encode(text, self.vocabulary))


def draw_texts(rng: Random, size: int, kind: str) -> dict[str, Any]:
    """Syllables as tokens. joined: a token of the last one, or two, and an option's first.

    At first that option has one syllable, so that all of it is in the joined token. spaces: two
    that are tokens of their own. empty: an option without text, then of a space; then there is
    none, or in every second case.
    """
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    parts = rng.sample(syllables, 10)
    context = parts[:4]
    options = [parts[4:5], parts[5:7], parts[7 : 8 + size % 3]]
    vocabulary = [*parts, " ", "er"]
    if kind == "joined":
        merged = context[-2:] if size == 2 else context[-1:]
        option = options[1] if size > 0 else options[0]
        vocabulary.append("".join([*merged, option[0]]))
    written = ["".join(option) for option in options]
    if kind == "empty":
        if size < 3 or (size > 3 and rng.random() < 0.5):
            written.insert(rng.randrange(4), "" if size % 3 < 2 else " ")
    elif size:
        rng.shuffle(written)
    rng.shuffle(vocabulary)
    spaces = " " * (1 + size // 2) if kind == "spaces" else ""
    return {"vocabulary": vocabulary, "context": "".join(context) + spaces, "options": written}


def numbers(compare: Comparator) -> Comparator:
    """A comparator of a list that also takes an array."""

    def compare_either(expected: Any, given: Any) -> str | None:
        return compare(expected, given.numpy().tolist() if isinstance(given, Array) else given)

    return compare_either


def only(name: str, *names: str) -> Comparator:
    """A comparator of several numbers, by name, that looks at one of them."""
    return numbers(row({other: CLOSE if other == name else anything() for other in names}))


def by_hand(rng: Random | None) -> Inputs:
    """Five answers: two bins have several of them, one has one, and one is empty."""
    if rng is None:
        case = {"confidence": [0.95, 0.6, 1.0, 0.7, 0.15], "correct": [1, 0, 1, 1, 0]}
        return case | {"f1": [0.9, 0.4, 1.0, 0.8, 0.1], "passage": ["a", "b", "a", "b", "c"]}
    rows = [(rng.randint(52, 61), 1), (rng.randint(63, 73), 0), (rng.randint(78, 97), 1), (100, 1)]
    rows.append((rng.choice([*range(18, 24), *range(28, 49)]), 0))
    rng.shuffle(rows)
    case = {"confidence": [percent / 100 for percent, _ in rows], "correct": [c for _, c in rows]}
    passages = list(rng.choice(["abacb", "abbac", "abcab", "aabac"]))
    f1: list[float] = []
    while not f1 or abs(standard_error(f1, passages) / standard_error(f1) - 1) < 0.1:
        f1 = [tenth / 10 for tenth in rng.sample(range(1, 11), 5)]
    return case | {"f1": f1, "passage": passages}


def by_hand_expected(case: Inputs) -> dict[str, float]:
    """The course's error in four bins, and its standard errors."""
    error = expected_calibration_error(case["confidence"], case["correct"], bins=4)
    alone, grouped = standard_error(case["f1"]), standard_error(case["f1"], case["passage"])
    return {"ece": error, "alone": alone, "passages": grouped}


def log_probs_expected(inputs: Inputs) -> Tensor:
    """In double precision."""
    rows = inputs["logits"].double().log_softmax(1)[inputs["context_length"] - 1 : -1]
    return rows[torch.arange(len(rows)), inputs["ids"][inputs["context_length"] :]]


def draw_sequence(rng: Random, size: int, kind: str) -> Inputs:
    """A context with an option of at least two tokens.

    shift: the logits are log-probabilities already. Otherwise the rows are equal. stable: large
    logits, improbable tokens, then float16.
    """
    context, option, vocab = 2 + size, 2 + size, 4 + size
    logits = torch.from_numpy(normal_arrays(rng, x=(context + option, vocab))["x"])
    ids = torch.tensor([rng.randrange(vocab) for _ in logits])
    logits = logits.log_softmax(1) if kind == "shift" else logits[:1].repeat(len(logits), 1)
    if kind == "stable":
        logits = ((logits + 300) * 5, logits * 300, (logits * 3).half())[size]
    return {"logits": logits, "ids": ids, "context_length": context}


def _scored(
    options: list[str], log_probs: list[list[float]], alone: list[float], answer: int | None = None
) -> multiple_choice.ScoredQuestion:
    """The course's question. alone: the log-probabilities of the options after a premise."""
    scored = [
        multiple_choice.ScoredOption(text, (), tuple(values), False, unconditional=premise)
        for text, values, premise in zip(options, log_probs, alone, strict=True)
    ]
    question = multiple_choice.ChoiceQuestion("", tuple(options), answer)
    return multiple_choice.ScoredQuestion(question, tuple(scored))


def scores_expected(inputs: Inputs) -> tuple[list[float], int]:
    """The course's scores and its choice."""
    kind = inputs["normalization"]
    question = _scored(inputs["options"], inputs["log_probs"], inputs["unconditional"])
    return [option.score(kind) for option in question.options], question.choice(kind)


WORDS = ["né", "Straße", "心", "心脏", "señor", "кит", "the heart", "lungs", "naïveté", "α"]


def draw_options(rng: Random, size: int, kinds: tuple[str, ...]) -> Inputs:
    """Options with scores in quarters, which floats hold exactly."""
    texts = rng.sample(WORDS, 2 + size)
    log_probs = [_quarters(rng, rng.randint(1, 3)) for _ in texts]
    alone = [sum(_quarters(rng, 3)) for _ in texts]
    case = {"options": texts, "log_probs": log_probs, "unconditional": alone}
    return case | {"normalization": kinds[size]}


def _quarters(rng: Random, count: int) -> list[float]:
    return [-rng.randint(1, 20) / 4 for _ in range(count)]


def scores_choice(rng: Random, size: int) -> Inputs:
    """By the sum, two are equally good; in the last case it isn't the sum that chooses."""
    case = draw_options(rng, 2, ("", "", "token" if size == 2 else "sum"))
    best = -rng.randint(2, 5) / 4
    case["log_probs"] = [[best], [best / 2, best / 2], [best - 1], [best, -0.25]]
    if size == 2:
        case["log_probs"] = [[best], [best - 2] * 3, [best / 2] * 3, [best - 1]]
    rng.shuffle(case["log_probs"])
    return case


scores = row({"scores": numbers(row(each=CLOSE)), "choice": anything()})
choice = row({"scores": anything(), "choice": number()})


counts = numbers(row(each=number()))


def single_expected(inputs: Inputs) -> list[float]:
    """The course's shares, and the means of its probabilities."""
    questions = tuple(
        _scored(["o"] * len(sums), [[value] for value in sums], sums, answer)
        for sums, answer in zip(inputs["log_probs"], inputs["answers"], strict=True)
    )
    result = multiple_choice.MultipleChoiceResult(questions)
    listed = [question.listed_probability for question in questions]
    confidence = [max(question.probabilities()) for question in questions]
    means = [math.fsum(values) / len(questions) for values in (listed, confidence)]
    return [result.accuracy(), result.single_answer_accuracy(), *means]


def draw_questions(rng: Random, size: int, lower: float = 0.0) -> Inputs:
    """Questions of two to four options. lower: by how much all sums are, in the last case."""
    case: Inputs = {"log_probs": [], "answers": []}
    for _ in range(4 + size):
        cuts = sorted(rng.sample(range(1, 40), rng.randint(1, 3)))
        listed = rng.choice([0.002, 0.05, 0.4, 0.9])
        parts = [listed * (b - a) / 40 for a, b in pairwise([0, *cuts, 40])]
        sums = [math.log(part) - (lower if size == 2 else 0.0) for part in parts]
        case["log_probs"].append(sums)
        case["answers"].append(rng.randrange(len(sums)))
    return case


def single_half(rng: Random, size: int) -> Inputs:
    """A right option with more than half of what is listed alone; half of all text; or more."""
    pairs = [(0.55, 0.2), (0.9, 0.05), (0.4, 0.1), (0.2, 0.5)]
    pairs = [(0.45, 0.2), (0.5, 0.3), *rng.choices(pairs, k=2 + size)]
    rng.shuffle(pairs)
    answers = [rng.randrange(2) for _ in pairs]
    ordered = [pair[::-1] if answer else pair for pair, answer in zip(pairs, answers, strict=True)]
    return {"log_probs": [list(map(math.log, pair)) for pair in ordered], "answers": answers}


PARTS = ("preferred", "single", "listed", "confidence")
preferred, half, listed, confidence = (only(name, *PARTS) for name in PARTS)


def calibration_expected(inputs: Inputs) -> float:
    """The course's error."""
    return expected_calibration_error(**inputs)


def draw_answers(rng: Random, size: int, kind: str) -> Inputs:
    """Answers in bins. No confidence is near an edge, except where kind is edges.

    filled: no bin is empty. empty: most are. edges: also 0 and the upper edge of each bin, which
    floats hold exactly; in the first bin all answers are right, in the last none. mass: bins that
    can't be equally large, and perhaps equal confidences.
    """
    bins = {"filled": 2 + size, "empty": (8, 10, 20)[size], "edges": (2, 4, 4)[size]}.get(kind, 3)
    places = [place for place in range(bins) for _ in range(rng.randint(1, 3))]
    if kind == "empty":
        places = rng.sample(range(1, bins - 1), 3)
        places += places[:1] * 2
    values = [round((place + rng.randint(15, 85) / 100) / bins, 4) for place in places]
    if kind == "edges":
        values += [place / bins for place in range(bins + 1)]
    if kind == "mass":
        values = [percent / 100 for percent in rng.sample(range(30, 99), 7 + size)]
        for _ in range(size):
            values[rng.randrange(4)] = values[5]
    rng.shuffle(values)
    correct = [int(rng.random() < 0.6) for _ in values]
    if kind == "edges":  # so that an answer that is put into the other of these bins is noticed
        for index, value in enumerate(values):
            if value <= 1 / bins or value > 1 - 1 / bins:
                correct[index] = int(value <= 1 / bins)
    binning = "mass" if kind == "mass" else "width"
    return {"confidences": values, "correct": correct, "bins": bins, "binning": binning}


def paired_expected(inputs: Inputs) -> tuple[float, float]:
    """The mean of the differences and the course's standard error of it."""
    pairs = zip(inputs["baseline"], inputs["system"], strict=True)
    differences = [system - baseline for baseline, system in pairs]
    return sum(differences) / len(differences), standard_error(differences, inputs["groups"])


def draw_runs(rng: Random, size: int, related: bool) -> Inputs:
    """Two runs that are alike. related: groups of different sizes, whose items are apart."""
    names = ["a", "b", "c", "d"][: 3 + size // 2]
    groups = [name for i, name in enumerate(names) for _ in range(1 + (i + size) % 3)]
    rng.shuffle(groups)
    if not related:
        groups = [f"q{i}" for i in range(4 + size)]
    baseline = [rng.randint(0, 8) / 8 for _ in groups]
    system = [min(max(score + rng.randint(-2, 3) / 8, 0.0), 1.0) for score in baseline]
    return {"baseline": baseline, "system": system, "groups": groups}


difference, error = (only(name, "difference", "error") for name in ("difference", "error"))


def pass_at_k_expected(inputs: Inputs) -> dict[str, Any]:
    """The exact mean of 1 - C(n - c, k) / C(n, k), as products of fractions."""
    samples, correct, k = inputs["samples"], inputs["correct"], inputs["k"]
    if min(samples) < k:
        return {"raised": "ValueError"}
    pairs = zip(samples, correct, strict=True)
    none = [Fraction(math.perm(n - c, k), math.perm(n, k)) for n, c in pairs]
    return {"raised": "nothing", "value": float(1 - sum(none) / len(none))}


def draw_samples(rng: Random, size: int, kind: str) -> Inputs:
    """Problems, with different numbers of samples except where there is one.

    mean: one problem, then several. certain: so few samples are wrong that one of k is right; at
    first it is just possible that none is. large: numbers whose factorials floats can't hold. few:
    one problem has fewer samples than k; then none, or in every second case.
    """
    k = rng.randint(2, 4)
    if kind == "large":
        samples = [rng.randint(2000, 3000)]
        return {"samples": samples, "correct": [rng.randint(2, 4)], "k": rng.randint(500, 900)}
    if kind == "certain":
        wrong = k - size
        samples = [wrong + (2 if size == 2 else rng.randint(3, 5))]
        return {"samples": samples, "correct": [samples[0] - wrong], "k": k}
    samples = rng.sample(range(k + 2, k + 9), 1 + size % 3)
    correct = [rng.randint(1, n - k - 1) for n in samples]
    if kind == "few":
        if size < 3 or (size > 3 and rng.random() < 0.5):
            place = rng.randrange(len(samples))
            samples[place], correct[place] = k - 1, rng.randint(0, 1)
    elif size:
        correct[0] = 0
    return {"samples": samples, "correct": correct, "k": k}
