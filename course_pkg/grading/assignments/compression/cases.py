"""`compression`: the cases of its questions; right values are those of `studies.compression`."""

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_pkg.acceleration.quantization.gguf_blocks import read_gguf, write_gguf
from course_pkg.acceleration.quantization.layerwise import InputStatistics
from course_pkg.grading.questions.comparators import anything, array, number, row
from course_pkg.grading.questions.draws import normal_arrays
from course_pkg.studies.compression import distillation, pruning, semi_structured
from course_pkg.studies.compression import pruning as patterns
from course_pkg.studies.compression.distillation import forward_kl, reverse_kl

Inputs = dict[str, Any]
GAP = 0.01  # of divergences, by which the best student is better than the next
RARE = 1e-4  # a probability that a divergence hardly notices unless the other one is 0


def logarithms(*distributions: list[float]) -> list[Tensor]:
    """What the course's divergences take as logits."""
    return [torch.tensor(shares, dtype=torch.float64).log() for shares in distributions]


def divergences(teacher: list[float], students: list[list[float]]) -> list[list[float]]:
    """The forward divergences of all students, and the reverse ones."""
    pairs = [logarithms(student, teacher) for student in students]
    return [[kind(*pair).item() for pair in pairs] for kind in (forward_kl, reverse_kl)]


def distribution(rng: Random, tokens: int, zeros: tuple[int, ...] = ()) -> list[float]:
    """Multiples of 1/20, from 1/20 on; 0 at the given tokens."""
    cuts = sorted(rng.sample(range(1, 20), tokens - len(zeros) - 1))
    parts = [(b - a) / 20 for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
    for token in sorted(zeros):
        parts.insert(token, 0.0)
    return parts


def draw_pair(rng: Random, size: int, betas: tuple[float, ...]) -> dict[str, Any]:
    """Two different distributions without zeros."""
    teacher = student = distribution(rng, 3 + size)
    while student == teacher:
        student = distribution(rng, 3 + size)
    return {"teacher": teacher, "student": student, "beta": betas[size % len(betas)]}


def jsd_zeros(rng: Random, size: int) -> dict[str, Any]:
    """Each has a zero of its own, and perhaps one in common; equal weights hide who has which."""
    tokens = 3 + size
    own, other, common = rng.sample(range(tokens), 3)
    shared = (common,) if size > 0 else ()
    teacher, student = (distribution(rng, tokens, (zero, *shared)) for zero in (own, other))
    return {"teacher": teacher, "student": student, "beta": 0.5}


def choose_forward(rng: Random, size: int) -> dict[str, Any]:
    """Both directions choose differently, and so does the cross entropy with the teacher."""
    while True:
        teacher = distribution(rng, 4)
        every = [distribution(rng, 4) for _ in range(3 + size)]
        forward, reverse = divergences(teacher, every)
        entropies = [
            -(torch.tensor(student).double() @ logarithms(teacher)[0]) for student in every
        ]
        chosen = {values.index(min(values)) for values in (forward, reverse, entropies)}
        gaps = [sorted(values)[1] - min(values) for values in (forward, reverse)]
        if len(chosen) == 3 and min(gaps) > GAP:
            return {"teacher": teacher, "students": every}


def choose_infinite(rng: Random, size: int) -> dict[str, Any]:
    """Two students are near the teacher: one rules out a token, and one allows one too many.

    The third allows what the teacher allows, but prefers what the teacher finds improbable. The two
    tokens are so improbable that a small number in place of 0 hides them: if one of the two
    students is less near, it would choose the other in both directions.
    """
    tokens = 4 + size
    never, out = rng.sample(range(tokens), 2)
    without = distribution(rng, tokens, (never, out))
    allowed = [token for token in range(tokens) if token not in (never, out)]
    rare = min(allowed, key=without.__getitem__)
    teacher = [RARE if i == out else (1 - RARE) * p for i, p in enumerate(without)]
    more = [RARE if i == never else (1 - RARE) * p for i, p in enumerate(teacher)]
    far = [0.9 if i == rare else 0.1 / (tokens - 2) for i in range(tokens)]
    far[never] = 0.0
    if size == 1:
        more = toward(more, far)
    elif size == 2:
        without = toward(without, far)
    every = [without, more, far]
    rng.shuffle(every)
    return {"teacher": teacher, "students": every}


def toward(near: list[float], far: list[float]) -> list[float]:
    """A mixture of the two, 0 where the first is 0."""
    mixed = [0.8 * a + 0.2 * b if a > 0 else 0.0 for a, b in zip(near, far, strict=True)]
    return [p / sum(mixed) for p in mixed]


def by_hand(rng: Random | None) -> Inputs:
    """A block to encode, codes to store, and bytes to read.

    The block's extreme is positive, so that d is negative, and a weight near its opposite is
    clamped. No weight is near a midpoint between codes.
    """
    if rng is None:
        case = {"first": [0.31, -0.78, 1.2, 0.1], "second": [-1.17, 0.5, -0.26, 0.92]}
        case |= {"low": [3, 12, 7, 15], "high": [9, 0, 14, 5]}
        return case | {"d": -0.2, "stored": [154, 60, 7, 225]}
    d = -rng.randint(12, 60) / 100
    numbers = [code - 8 + rng.uniform(-0.3, 0.3) for code in rng.sample(range(2, 15), 6)]
    numbers += [-8.0, rng.uniform(7.75, 7.92)]
    rng.shuffle(numbers)
    weights = [round(d * number, 3) for number in numbers]
    codes, halves = rng.sample(range(16), 8), rng.sample(range(16), 8)
    case = {"first": weights[:4], "second": weights[4:], "low": codes[:4], "high": codes[4:]}
    case["d"] = rng.choice([-1, 1]) * rng.randint(5, 60) / 100
    return case | {"stored": [halves[i] + 16 * halves[i + 4] for i in range(4)]}


def by_hand_scale_expected(case: Inputs) -> float:
    """The scale that is written, which fp16 has rounded."""
    block = torch.zeros(1, 32)
    block[0, :4], block[0, 16:20] = torch.tensor(case["first"]), torch.tensor(case["second"])
    return write_gguf(block, "Q4_0").codes[0, :2].view(torch.float16).item()


def by_hand_codes_expected(case: Inputs, scale: float) -> list[int]:
    """The codes with the student's own scale, rounded as llama.cpp does it."""
    codes = [math.trunc(weight / scale + 8.5) for weight in case["first"] + case["second"]]
    return [min(max(code, 0), 15) for code in codes]


def by_hand_bytes_expected(case: Inputs) -> list[int]:
    """Low and high halves."""
    return [low + 16 * high for low, high in zip(case["low"], case["high"], strict=True)]


def by_hand_read_expected(case: Inputs) -> list[float]:
    """What the course reads from a block with these bytes."""
    scale = torch.tensor([case["d"]], dtype=torch.float16).view(torch.uint8)
    block = torch.cat([scale, torch.tensor(case["stored"] + [0x88] * 12, dtype=torch.uint8)])
    numbers = read_gguf(block[None], "Q4_0").dequantize()[0].tolist()
    return numbers[:4] + numbers[16:20]


def distillation_expected(inputs: Inputs) -> tuple[float, Tensor]:
    """The course's loss, whose logits are not shifted, and its gradient by autograd."""
    student = inputs["student"].double().requires_grad_()
    last = torch.zeros(1, student.shape[1], dtype=torch.float64)
    loss = distillation.distillation_loss(
        torch.cat([student, last])[None],
        torch.cat([inputs["teacher"].double(), last])[None],
        torch.cat([torch.tensor([-100]), inputs["labels"]])[None],
        alpha=inputs["alpha"],
        temperature=inputs["temperature"],
    )
    (gradient,) = torch.autograd.grad(loss, student)
    return loss.item(), gradient


def draw_logits(
    rng: Random,
    size: int,
    *,
    alpha: float | None = None,
    temperature: float | None = None,
    symmetric: bool = False,
    masked: bool = False,
    shift: float = 0.0,
) -> Inputs:
    """Positions with logits of a student and a teacher.

    shift: added to all logits of the largest case, whose exp overflows. symmetric: the student
    finds two tokens as probable as the teacher the other way round, so that both KL divergences are
    equal. masked: one label; two, and NaN at the others; no label.
    """
    positions, vocab = 4 if masked else 2 + size, 3 + size
    arrays = normal_arrays(rng, student=(positions, vocab), teacher=(positions, vocab))
    student, teacher = (2 * torch.from_numpy(array) for array in arrays.values())
    if symmetric:
        student[:, 1] = student[:, 0] + rng.choice([-1, 1]) * rng.uniform(1, 2)
        teacher = student[:, [1, 0, *range(2, vocab)]]
    labels = torch.tensor([rng.randrange(vocab) for _ in range(positions)])
    if size == 2:
        student, teacher = student + shift, teacher + shift
    if masked:
        skipped = rng.sample(range(4), (3, 2, 4)[size])
        labels[skipped] = -100
        if size == 1:
            student[skipped], teacher[skipped] = math.nan, math.nan
    return {
        "student": student,
        "teacher": teacher,
        "labels": labels,
        "alpha": rng.choice([0.2, 0.3, 0.7, 0.8]) if alpha is None else alpha,
        "temperature": rng.choice([1.5, 2.5, 3.0, 4.0]) if temperature is None else temperature,
    }


LOSS, GRADIENT = number(rtol=1e-3, atol=1e-5), array(rtol=1e-3, atol=1e-6)
loss = row({"loss": LOSS, "gradient": anything()})
gradient = row({"loss": anything(), "gradient": GRADIENT})
both = row({"loss": LOSS, "gradient": GRADIENT})


def jsd_expected(inputs: Inputs) -> float:
    """The course's divergence, of logarithms."""
    teacher, student = logarithms(inputs["teacher"], inputs["student"])
    return distillation.generalized_jsd(student, teacher, inputs["beta"]).item()


def choose_expected(inputs: Inputs) -> tuple[int, int]:
    """The students with the smallest forward and the smallest reverse divergence."""
    forward, reverse = divergences(**inputs)
    return forward.index(min(forward)), reverse.index(min(reverse))


def wanda_expected(inputs: Inputs) -> Tensor:
    """The course's scores, from its statistics of all batches."""
    statistics = InputStatistics()
    for batch in inputs["batches"]:
        statistics.add(batch)
    return pruning.wanda_scores(inputs["weight"], pruning.input_norms(statistics))


def draw_layer(rng: Random, size: int, tokens: tuple[int, ...], *, signed: bool = False) -> Inputs:
    """A weight, (2 + size, 3 + size), and batches of so many tokens. Not signed: it is positive."""
    columns = 3 + size
    shapes = {f"batch_{i}": (count, columns) for i, count in enumerate(tokens)}
    arrays = normal_arrays(rng, weight=(2 + size, columns), **shapes)
    weight = arrays.pop("weight")
    return {"weight": weight if signed else abs(weight), "batches": list(arrays.values())}


def mask_expected(inputs: Inputs) -> Tensor:
    """The course's mask."""
    return patterns.SemiStructured(inputs["n"], inputs["m"]).mask(inputs["scores"])


def draw_scores(
    rng: Random, size: int, kinds: tuple[tuple[int, int], ...], ties: bool = False
) -> Inputs:
    """Scores of as many rows as a group has columns; once, they are tiny. ties: few numbers."""
    n, m = kinds[size]
    columns = m * (2 + size)
    values = [i / 8 for i in range(m * columns)]
    rng.shuffle(values)
    if ties:
        values = [float(rng.randint(0, 2)) for _ in values]
    scale = 2.0**-20 if size == 1 else 1.0
    return {"scores": scale * torch.tensor(values).view(m, columns), "n": n, "m": m}


def count_expected(inputs: Inputs) -> int:
    """The course's count."""
    return patterns.pruned_count(**inputs)


def draw_products(rng: Random, size: int, *, kind: str) -> Inputs:
    """A size and a sparsity whose product is a whole number, a half, or neither.

    whole: in floats it is below or above; or all are removed. half: in floats it is above; or it is
    exact, and the even neighbor is above. Sparsities have two decimals, then three, then four.
    """
    if kind == "whole" and size == 2:
        return {"size": rng.randint(10, 20_000), "sparsity": 1.0}
    base = 10 ** (2 + size)
    while True:
        many, parts = rng.randint(10, 2 * base), rng.randint(1, base - 1)
        product = many * (parts / base)
        whole, rest = divmod(many * parts, base)
        below, above = product < whole, product > whole
        half = product > whole + 0.5 if size != 1 else whole % 2 and product == whole + 0.5
        fits = {
            "whole": rest == 0 and (above if size else below),
            "half": rest == base // 2 and half,
            "neither": 0.5 < rest / base < 0.98 if size == 1 else 0.02 < rest / base < 0.5,
        }
        if fits[kind]:
            return {"size": many, "sparsity": parts / base}


def bytes_expected(inputs: Inputs) -> tuple[int, int]:
    """The rows of an n:m matrix, and of one with a bitmap."""
    rows, columns, m = inputs["rows"], inputs["columns"], inputs["m"]
    values = columns * inputs["n"] // m
    indices = -(-values * semi_structured.index_bits(m) // 8)
    stored = values * inputs["value_bytes"]
    return rows * (stored + indices), rows * (stored + -(-columns // 8))


def draw_matrix(
    rng: Random, size: int, kinds: tuple[tuple[int, int], ...], *, whole: bool = True
) -> Inputs:
    """A matrix with a pattern. whole: indices and bitmap fill bytes; else neither does.

    In the largest case that isn't whole, both exceed whole bytes by less than half a byte.
    """
    n, m = kinds[size]
    groups = 8 * rng.randint(2, 40) + 1
    if whole:
        groups -= 1
    elif size < 2:
        groups = 2 * rng.randint(1, 40) + 1
    sizes = {"rows": rng.randint(2, 60), "columns": groups * m}
    return sizes | {"value_bytes": rng.choice([1, 2, 4]), "n": n, "m": m}


indexed = row({"n:m": number(), "bitmap": anything()})
mapped = row({"n:m": anything(), "bitmap": number()})
