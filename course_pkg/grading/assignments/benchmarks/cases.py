"""`benchmarks`: the cases of its questions; right values are those of `course_pkg.evaluation`."""

import math
import re
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from course_pkg.evaluation.statistics import wilson_interval
from course_pkg.grading.questions import comparators
from course_pkg.grading.questions.comparators import Comparator, Difference, anything, number, row
from course_pkg.grading.questions.plain_values import Array
from course_pkg.studies.benchmarks.win_rates import win_rates
from course_pkg.studies.chat_benchmarks.comparisons import ELO_SCALE, JudgedMatch
from course_pkg.studies.code_benchmarks.pass_estimators import pass_at_k
from course_pkg.studies.code_benchmarks.problems import CodeProblem, extract_program
from course_pkg.studies.contamination.overlap import find_overlaps

Inputs = dict[str, Any]
CLOSE = number(rtol=1e-6, atol=1e-7)
ROUNDED = number(atol=1e-4)  # of shares, with 1.96 for the quantile
LOGITS = number(atol=1e-3)
WORDS = tuple(
    f"{color}{thing}"
    for color in ("red", "blue", "gray", "pink", "teal")
    for thing in ("boat", "lamp", "door", "bell", "moon")
)
MODELS = ("ash", "beech", "cedar", "fir", "larch", "maple", "oak", "pine")
LARGEST = 3.0  # of a fitted coefficient: other draws are taken again


def newton_expected(inputs: Inputs) -> list[float]:
    """The step of `fit_logistic` from the given coefficients."""
    import numpy as np

    from course_pkg.studies.chat_benchmarks.logistic import sigmoid

    names = ("design", "outcomes", "coefficients")
    x, y, start = (np.array(inputs[name], float) for name in names)
    chances = sigmoid(x @ start)
    information = (x.T * (chances * (1 - chances))) @ x
    return (start + np.linalg.solve(information, x.T @ (y - chances))).tolist()


def draw_regression(rng: Random, size: int, kind: str) -> Inputs:
    """Rows with a 1 and other columns. large: two rows are so far out that they count nothing."""
    import numpy as np

    columns, rows = 2 + size // 2, 6 + size
    design = [[1.0, *(rng.randint(-8, 8) / 4 for _ in range(columns - 1))] for _ in range(rows)]
    outcomes: list[float] = [rng.randint(0, 1) for _ in design]
    if kind == "fractions":
        outcomes = [rng.choice([0, 0.2, 0.4, 0.5, 0.7, 0.9, 1]) for _ in design]
    start = [0.0] * columns
    if kind in ("weights", "large"):
        start = [rng.choice([-1, 1]) * rng.randint(2, 4) / 4 for _ in start]
    if kind == "large":  # as predicted: any other outcome of such a row would decide the step
        start[1:] = [abs(value) for value in start[1:]]
        design += [[1.0, *[sign * 6000.0] * (columns - 1)] for sign in (-1, 1)]
        outcomes += [0, 1]
    case = {"design": design, "outcomes": outcomes, "coefficients": start}
    if np.linalg.matrix_rank(np.array(design[:rows])) < columns or len(set(outcomes)) < 2:
        return draw_regression(rng, size, kind)
    return case


def strengths_expected(inputs: Inputs) -> dict[str, float]:
    """The course's strengths."""
    from course_pkg.studies.chat_benchmarks.ratings import bradley_terry

    fit = bradley_terry([JudgedMatch(*match) for match in inputs["matches"]], errors="fisher")
    return dict(zip(fit.names, fit.strengths.tolist(), strict=True))


def draw_matches(rng: Random, size: int, kind: str) -> Inputs:
    """Unevenly many matches between all pairs, with finite strengths of different sizes."""
    names = rng.sample(MODELS, 3 + size)
    verdicts = {"ties": [0, 0.5, 0.5, 1], "failed": [0, 1, 1, None]}.get(kind, [0, 1, 1])
    matches = []
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            for _ in range(rng.randint(1, 5)):
                pair = [first, second] if rng.random() < 0.7 else [second, first]
                matches.append([*pair, rng.choice(verdicts)])
    if kind == "failed" and size:
        other = next(name for name in MODELS if name not in names)
        matches += [[other, names[0], None], [names[1], other, None]]
    rng.shuffle(matches)
    decided = [match for match in matches if match[2] != 0.5]  # wrong answers have a value too
    try:
        fits = [strengths_expected({"matches": these}) for these in (matches, decided)]
    except ValueError:  # somebody won all matches
        return draw_matches(rng, size, kind)
    if max(map(abs, fits[0].values())) > LARGEST or not all(set(f) == set(names) for f in fits):
        return draw_matches(rng, size, kind)
    return {"matches": matches}


def length_expected(inputs: Inputs) -> float:
    """The course's length-controlled win rate."""
    from course_pkg.studies.chat_benchmarks.length_control import length_controlled_win_rate

    control = length_controlled_win_rate(**inputs)
    if max(map(abs, (control.model, control.length, control.difficulty))) > LARGEST:
        raise ValueError("the coefficients are too large")
    return control.controlled.estimate


def draw_judged(rng: Random, size: int, kind: str) -> Inputs:
    """Preferences that rise with length. equal, difficulty: all differences are ±Δ.

    Then tanh and d change only the coefficient. difficulty: γ of several sizes.
    """
    count = 10 + 3 * size
    step = 10 * rng.randint(4, 20)
    gaps = [rng.choice([-step, step, step]) for _ in range(count)]
    if kind == "tanh":
        gaps = [10 * rng.randint(-15, 60) for _ in range(count)]
    baseline = [rng.randint(65, 90) * 10 for _ in range(count)]
    hard = [rng.randint(-8, 8) / 4 for _ in range(count)] if kind == "difficulty" else None
    logits = [gap / step - 0.3 + (hard[i] if hard else 0) for i, gap in enumerate(gaps)]
    judged = [round(1 / (1 + math.exp(-z - rng.gauss(0, 1))), 2) for z in logits]
    lengths = [gap + other for gap, other in zip(gaps, baseline, strict=True)]
    case = {"preferences": judged, "lengths": lengths, "baseline_lengths": baseline}
    case["difficulty"] = hard
    try:
        clear = abs(length_expected(case) - sum(judged) / count) > 0.02
    except ValueError:
        clear = False
    return case if clear else draw_judged(rng, size, kind)


def _plain(given: Any) -> Any:
    return given.numpy().tolist() if isinstance(given, Array) else given


def numbers(expected: list[float], given: Any) -> str | None:
    """A list of numbers, or an array."""
    return row(each=CLOSE)(expected, _plain(given))


def by_hand(rng: Random | None) -> Inputs:
    """Samples of one problem, of which some sets of k have none that passed; and a match."""
    if rng is None:
        case = {"n": 6, "c": 2, "k": 3}
        return case | {"first": 1060, "second": 1000, "K": 32, "outcome": 0}
    c, k = rng.randint(2, 4), rng.randint(2, 4)
    case = {"n": c + k + rng.randint(1, 9), "c": c, "k": k}
    first = rng.randint(950, 1250)
    second = first + rng.choice([-1, 1]) * rng.randint(40, 190)
    case |= {"first": first, "second": second, "K": rng.choice([10, 16, 20, 24, 32, 40])}
    return case | {"outcome": rng.randint(0, 1)}


def by_hand_expected(case: Inputs) -> dict[str, float]:
    """The course's estimate, and a step of its Elo ratings."""
    lead = (case["first"] - case["second"]) / ELO_SCALE  # in log-odds
    gain = case["K"] * (case["outcome"] - 1 / (1 + math.exp(-lead)))
    return {"pass": pass_at_k(case["n"], case["c"], case["k"]), "elo": gain}


def program_expected(inputs: Inputs) -> str:
    """The course's program, for a problem that is only a sentence."""
    problem = CodeProblem("", "Write a function.", inputs["name"], "", ())
    return extract_program(problem, inputs["text"])


def same_program(expected: str, given: Any) -> str | None:
    """The same text, but for empty lines at its end."""
    if not isinstance(given, str):
        return comparators.wrong_type("a text", given)
    if expected.rstrip() == given.rstrip():
        return None
    return Difference.at("the program", "the text differs", expected, given)


def without_fences(expected: str, given: Any) -> str | None:
    """A comparator: the same program, but for lines of fences, which another property judges."""
    if not isinstance(given, str):
        return same_program(expected, given)
    texts = (re.sub(r"^```.*\n?", "", text, flags=re.MULTILINE) for text in (expected, given))
    return same_program(*texts)


def draw_answer(rng: Random, size: int, kind: str) -> Inputs:
    """What a chat model wrote.

    block: an example follows; first, no block has a `def`; then fences are indented, or backticks
    stand in a sentence. defines: first comes a command, a method, or another function. cut: the
    block isn't closed. none: there is no block, except in the last case.
    """
    name, other, value = rng.sample(WORDS, 3)
    factor = rng.randint(2, 9)
    program = f"def {name}(x):\n    {value} = x * {factor}\n    return {value}\n"
    if rng.random() < 0.5:
        program = f"import math\n\n{program}"
    call = f"print({name}({factor}))\n"
    before = f"Here is {name}:\n\n"
    fence = rng.choice(["```python\n", "```py\n", "```\n"])
    if kind == "none" and size < 3:
        return {"text": program + call * size, "name": name}
    if kind == "none":  # one line, in which nothing but the fences can go wrong
        line = f"def {name}(x): return x * {factor}\n"
        return {"text": f"{before}{fence}{line}```\n", "name": name}
    if kind == "cut":
        return {"text": before + fence + program, "name": name}
    if kind == "defines":
        first = (
            f"pip install {other}\n",
            f"class {other.title()}:\n    def {name}(self):\n        return {factor}\n",
            f"def {name}_{other}(x):\n    return {factor}\n",
        )[size]
        return {"text": f"First:\n\n```\n{first}```\n\n{before}{fence}{program}```\n", "name": name}
    program = program if size else f"{name} = lambda x: x * {factor}\n"
    pad = "  " if size == 1 else ""
    marks = ", after ```" if size == 2 else ""
    blocks = f"{pad}{fence}{program}{pad}```\n\nFor example:\n\n```python\n{program}\n{call}```\n"
    return {"text": f"Here is {name}{marks}:\n\n{blocks}It prints a number.\n", "name": name}


def _by_name(expected: dict[str, float], given: Any, compare: Comparator) -> str | None:
    """A dict of numbers, in any order."""
    if not isinstance(given, dict):
        return comparators.wrong_type("a dict of numbers by name", given)
    if set(given) != set(expected):
        return f"expected the names {sorted(expected)}, but {sorted(map(str, given))} were given"
    for name, right in expected.items():
        if (reason := compare(right, given[name])) is not None:
            return Difference.at(name, reason, right, given[name])
    return None


centered = partial(_by_name, compare=LOGITS)
by_name = partial(_by_name, compare=CLOSE)


def differences(expected: dict[str, float], given: Any) -> str | None:
    """Equal up to a constant that is added to all."""
    finite = number(atol=math.inf)  # any finite number
    if (reason := _by_name(expected, given, finite)) is not None:
        return reason
    values = {name: float(_plain(value)) for name, value in given.items()}
    mean = sum(values.values()) / len(values)
    return centered(expected, {name: value - mean for name, value in values.items()})


def pairs_expected(inputs: Inputs) -> tuple[float, float, float, float]:
    """The course's Wilson interval; the gap as `direction_gap` defines it."""
    won = [more > less for more, less in zip(inputs["more"], inputs["less"], strict=True)]
    whole = wilson_interval(sum(won), len(won))
    pairs = list(zip(won, inputs["directions"], strict=True))
    first, second = (fmean(more for more, side in pairs if side == which) for which in (0, 1))
    return whole.estimate, whole.low, whole.high, first - second


def draw_pairs(rng: Random, size: int, kind: str) -> Inputs:
    """Sums of log-probabilities in quarters, so that ties are exact.

    interval: in the last cases all pairs are preferred, or none. gap: sides of different sizes.
    """
    directions = [0] * (3 + size) + [1] * (rng.randint(4, 6) + 2 * size)
    rng.shuffle(directions)
    less = [-rng.randint(40, 160) / 4 for _ in directions]
    preferred = [rng.random() < (0.8 if d == 0 else 0.4) for d in directions]
    if kind == "interval" and size:
        preferred = [size == 1] * len(directions)
    steps = [rng.randint(1, 24) / 4 * (1 if won else -1) for won in preferred]
    if kind == "ties":
        for place in rng.sample(range(len(steps)), 1 + size):
            steps[place] = 0.0
    won = sum(step > 0 for step in steps)
    ties = 1 + size if kind == "ties" else 0
    if kind != "interval" and not 0 < won < len(steps) - ties:
        return draw_pairs(rng, size, kind)
    more = [low + step for low, step in zip(less, steps, strict=True)]
    return {"more": more, "less": less, "directions": directions}


def _only(*looked_at: str) -> Comparator:
    names = ("share", "low", "high", "gap")
    compare = row({name: ROUNDED if name in looked_at else anything() for name in names})
    return lambda expected, given: compare(expected, _plain(given))


share, interval, gap = _only("share"), _only("low", "high"), _only("gap")
shares = _only("share", "low", "high", "gap")


def overlap_expected(inputs: Inputs) -> float:
    """The course's share."""
    [overlap] = find_overlaps([inputs["item"]], inputs["texts"], inputs["n"])
    return overlap.share


def draw_texts(rng: Random, size: int, kind: str) -> Inputs:
    """An item, and texts with parts of it.

    covered: long stretches and single words; one word is twice in the item. normalized: other
    layout and signs, and a number. borders: a run is divided between two texts, another one is in
    pieces, and one begins within a word. short: the item has fewer than n words; then n; then any.
    """
    n = rng.randint(3, 5)
    if kind == "short":
        fewer = 1 + size % 2 if size < 3 else 0 if size == 3 else rng.randint(0, 1)
        words = rng.sample(WORDS, n - fewer)
        return {"item": " ".join(words), "texts": [" ".join([*words, rng.choice(WORDS)])], "n": n}
    words = rng.sample(WORDS, 3 * n + size + rng.randint(1, 2))
    others = [word for word in WORDS if word not in words]
    long = words[: n + 1 + size % 2]
    rest = words[len(long) + 1 :]
    if kind == "borders":
        texts = [[others[0], *rest[: n - 1]], [*rest[n - 1 : n + 1], others[1] + rest[0]]]
        texts[1] += rest[1:n]
        texts.append([*long[: n - 1], others[2], *long[n - 1 : n + 1], others[3], *words[:n]])
        if size == 0:
            texts.pop()
        return {"item": " ".join(words), "texts": [" ".join(text) for text in texts], "n": n}
    texts = [[others[0], *long, others[1], rest[-1]], [rest[0], others[2], *rest[1 : n - 1]]]
    joined = [" ".join(text) for text in texts]
    if kind == "normalized":
        at, words[len(long)] = texts[0].index(long[1]), str(rng.randint(10, 99))
        sign = ("-", "_", rng.choice([", ", "; ", " — ", ".\n\n"]))[size]
        joined[0] = "\n".join(texts[0][:at]) + sign + " ".join(texts[0][at:]) + "."
        joined[0] = joined[0].title() if size else joined[0].upper()
        return {"item": " ".join(words).capitalize() + "?", "texts": joined, "n": n}
    return {"item": " ".join([*words, long[1]]), "texts": joined, "n": n}


def rates_expected(inputs: Inputs) -> dict[str, float]:
    """The course's mean win rates, with the sign of some tasks changed."""
    lower = inputs["lower_is_better"]
    table = [
        [-score if less else score for score, less in zip(scores, lower, strict=True)]
        for scores in inputs["scores"].values()
    ]
    return dict(zip(inputs["scores"], win_rates(table), strict=True))


def draw_table(rng: Random, size: int, kind: str) -> Inputs:
    """Scores of models on tasks. ties: some are equal. lower: lower is better in some tasks."""
    names, tasks = rng.sample(MODELS, 3 + size), 3 + size
    columns = [rng.sample(range(40, 90), len(names)) for _ in range(tasks)]
    if kind == "ties":
        for column in columns[: 1 + size]:
            column[1] = column[0]
    rng.shuffle(columns)
    lower = [kind == "lower" and rng.random() < 0.5 for _ in columns]
    if kind == "lower":
        lower[:2] = rng.sample([True, False], 2)
    scores = {name: [column[i] for column in columns] for i, name in enumerate(names)}
    return {"scores": scores, "lower_is_better": lower}
