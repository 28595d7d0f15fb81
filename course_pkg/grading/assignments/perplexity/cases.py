"""`perplexity`: its cases; right values: `course_pkg.metrics`. A model's logits have one cause."""

import math
from random import Random
from typing import Any

import numpy as np
import torch

from course_pkg.grading.assignments.perplexity.student import VOCABULARY, build, real_tokens
from course_pkg.grading.questions.comparators import array
from course_pkg.grading.questions.plain_values import Array
from course_pkg.metrics.perplexity.likelihood import Likelihood
from course_pkg.metrics.perplexity.text_perplexity import perplexity, windows
from course_pkg.metrics.perplexity.token_scores import target_log_probs, token_log_probs

Values = dict[str, Any]
SENTENCES = "the ship sailed", "bread needs time", "a dog barked twice", "we walked home slowly"


def by_hand(rng: Random | None) -> Values:
    """Two texts by their mean log-probabilities, and a sentence word by word."""
    if rng is None:
        case = {"length": 100, "mean_log_probability": -2.5, "words": ["the", "cat", "sat"]}
        case |= {"probabilities": [0.3, 0.5], "other_length": 10}
        return case | {"other_mean_log_probability": -2.0}
    words = rng.choice(SENTENCES).split()
    twentieths = [rng.randint(1, 7), rng.randint(14, 16), rng.randint(8, 13)][: len(words) - 1]
    length = rng.randint(40, 160)
    tenths = rng.randint(15, 39)
    return {
        "length": length,
        "mean_log_probability": -tenths / 10,
        "words": words,
        "probabilities": [n / 20 for n in rng.sample(twentieths, len(twentieths))],
        "other_length": length // rng.randint(3, 4),
        "other_mean_log_probability": -(tenths + rng.randint(5, 15)) / 10,
    }


def by_hand_expected(case: Values) -> dict[str, float]:
    sentence = Likelihood.of(map(math.log, case["probabilities"]), unscored=1)
    text, other = (
        Likelihood(-case[f"{which}length"] * case[f"{which}mean_log_probability"], case[length])
        for which, length in (("", "length"), ("other_", "other_length"))
    )
    return {
        "perplexity": text.perplexity,
        "nll": sentence.nll,
        "sentence": sentence.perplexity,
        "bits": sentence.bits_per_token,
        "together": Likelihood.total([text, other]).perplexity,
    }


def _ids(rng: Random, *shape: int, start: int = 1, stop: int = VOCABULARY) -> torch.Tensor:
    return torch.tensor(rng.choices(range(start, stop), k=math.prod(shape))).view(shape)


def log_probs_expected(inputs: Values) -> torch.Tensor:
    return target_log_probs(inputs["logits"][:, :-1], inputs["input_ids"][:, 1:])


def up_to_a_factor(expected: Array, given: Any) -> str | None:
    """Compare log-probabilities as if their base and sign were free: one property is for these."""
    if isinstance(given, Array) and given.shape == expected.shape:
        right, other = (a.numpy().astype("float64") for a in (expected, given))
        if math.isfinite(factor := (right * other).sum() / (right**2).sum()) and factor:
            given = Array.of(other / factor)
    return array(rtol=1e-4, atol=1e-6)(expected, given)


def draw_log_probs(rng: Random, size: int, prop: str) -> Values:
    """For `shift`, only which logits score which token shows; otherwise, all but that."""
    shape = 2 + size, 4 + size, 5 + size
    normal = torch.tensor([rng.gauss(0, 2) for _ in range(math.prod(shape))]).view(shape)
    logits = normal.log_softmax(-1)
    ids = _ids(rng, *shape[:2], start=0, stop=shape[2])
    if prop != "shift":  # the same at every position, and not normalized
        logits = normal[:, :1].expand(shape).clone()
        ids = ids[:, :1].expand(shape[:2])
    if prop == "stable" and size != 1:  # a target of probability below e⁻¹⁴⁰
        logits[0, :, ids[0, 0]] -= rng.uniform(150, 200)
    if prop == "stable" and size > 0:
        logits = logits + 400.0
    return {"logits": logits, "input_ids": ids}


def batch_expected(inputs: Values) -> Values:
    """The cost of each text alone, without pads; of all together, if the model looks at all."""
    rows = real_tokens(inputs["input_ids"], inputs["attention_mask"])
    model, _ = build(inputs["kind"], inputs["seed"])
    together = inputs["kind"] == "batch"
    scores = token_log_probs(model, rows, batch_size=len(rows) if together else 1)
    tokens = torch.tensor([len(score) for score in scores]).double()
    return {"nll": torch.stack([-s.double().sum() for s in scores]), "tokens": tokens}


def draw_batch(rng: Random, size: int, kind: str, padding: str) -> Values:
    """Texts padded with 0; on the right side, a token of a text has that id too."""
    lengths = rng.sample(range(3, 9), 2 + size) if padding else [3 + size] * (2 + size)
    if kind == "positions":  # the longest text, which has no pads, comes first or last
        lengths.sort(reverse=size != 1)
    mask = torch.tensor([[int(i < n) for i in range(max(lengths))] for n in lengths])
    mask = mask.flip(1) if padding == "left" else mask
    ids = _ids(rng, *mask.shape) * mask
    if padding == "right":
        ids[rng.randrange(2 + size), rng.randint(1, 2)] = 0
    return {"kind": kind, "seed": rng.randrange(2**31), "input_ids": ids, "attention_mask": mask}


def corpus_expected(inputs: Values) -> Values:
    """The reference's perplexity, one text at a time, and each text's NLL."""
    texts = inputs["texts"]
    size = inputs["batch_size"]
    try:
        result = perplexity(*build("llama", inputs["seed"]), texts, batch_size=1)
    except ValueError:
        return {"raised": "ValueError", "nlls": torch.zeros(0)}
    nlls = torch.tensor([t.nll for t in result.per_text])
    if inputs["_by_size"]:  # as `score` does; all texts are equal
        nlls *= torch.tensor([min(size, len(texts) - i // size * size) for i in range(len(texts))])
    return {"raised": "nothing", "perplexity": result.perplexity, "nlls": nlls}


def in_any_order(expected: Array, given: Any) -> str | None:
    """Compare NLLs without their order: which text is in the smaller batch is free."""
    if isinstance(given, Array) and given.shape == expected.shape:
        expected, given = (Array.of(np.sort(a.numpy())) for a in (expected, given))
    return array(rtol=1e-4)(expected, given)


def draw_corpus(rng: Random, size: int, prop: str) -> Values:
    """Texts of letters, each a token; in all batches but those of `batches`, batch_size texts."""
    batch_size = 2
    lengths = rng.sample(range(2, 6 + 2 * size), 4 + 2 * size)
    if prop == "total":  # short and long texts, so that a mean of means differs
        batch_size = 1 + size % 2
        lengths = rng.choices([2, 3], k=2 + size)
        lengths += [rng.randint(9, 19) for _ in range(2 + size)]
        rng.shuffle(lengths)
    elif prop == "batches":  # batch_size does not divide the number of texts
        batch_size = 2 + size
        count = batch_size * rng.randint(1, 2) + rng.randint(1, batch_size - 1)
        lengths = rng.choices(range(3, 9), k=count)
    elif prop == "short":  # no token, then one token, then more, but not in the last case
        batch_size = 1
        lengths = [[0, 5, 5], [0, 1, 5, 5, 5], [0, 1, 1]][size]
    texts = ["".join(rng.choices("abcdefghijklmnop ", k=length)) for length in lengths]
    if prop == "batches":
        texts = texts[:1] * len(texts)
    if prop in ("total", "order"):  # a text that occurs twice
        texts[-1] = texts[0]
    elif prop == "short" and size == 1:  # a letter of two tokens
        texts[2] = rng.choice("éößñ")
    case = {"seed": rng.randrange(2**31), "padding_side": rng.choice(["left", "right"])}
    return {"texts": texts, "batch_size": batch_size, "_by_size": prop == "batches", **case}


def sliding_expected(inputs: Values) -> Values:
    """The reference's windows over the text, and what is scored in them."""
    ids = inputs["input_ids"].tolist()
    plan = windows(len(ids), inputs["window"], inputs["stride"])
    seen = [ids[window.start : window.end] for window in plan]
    first = [window.first - window.start for window in plan]
    model, _ = build(inputs["kind"], inputs["seed"])
    scores = torch.cat(token_log_probs(model, seen, first=first, batch_size=1)).double()
    return {"nll": -scores.sum(), "tokens": torch.tensor(len(scores)).double(), "windows": seen}


def same_windows(expected: list[list[int]], given: Any) -> str | None:
    """Compare the windows that a model saw, in any order. A last token may be a target only."""
    if len(given) == len(expected):
        pairs = zip(sorted(expected), sorted(given), strict=True)
        if all(other in (right, right[:-1]) for right, other in pairs):
            return None
    return f"the model saw {len(given)}; expected {len(expected)}"


def draw_sliding(rng: Random, size: int, kind: str, fits: bool = False) -> Values:
    """Three to five windows, the last one not full; or a text that fits in one."""
    window = 4 + size + rng.randint(0, 1)
    stride = rng.randint(2, window - 2)
    length = window + stride * (1 + size) + rng.randint(1, stride - 1)
    if fits:
        length = 4 + size
        stride = rng.randint(1, 2 + size)
        window = length if size == 1 else length + rng.randint(1, 8)
    elif kind == "windows":
        kind = f"windows:{window - stride}"
    case = {"kind": kind, "seed": rng.randrange(2**31), "input_ids": _ids(rng, length)}
    return {**case, "window": window, "stride": stride}
