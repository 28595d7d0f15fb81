"""`perplexity/corpus`: the perplexity of a list of texts, scored in batches.

Chapter: exercises.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from course_pkg.metrics.perplexity.score import perplexity

from ...contract.compare import Comparator, array, number, parts
from ...contract.questions import Misconception, Property, Question
from .ask import call_corpus
from .models import build_llama

LETTERS = list("abcdefghijklmnopqrstuvwxyz ")


def expected(inputs: dict[str, Any]) -> dict[str, Any]:
    """The reference's perplexity, one text at a time, and the batches asked for."""
    texts, size = inputs["texts"], inputs["batch_size"]
    try:
        result = perplexity(*build_llama(inputs["model"]), texts, batch_size=1)
    except ValueError:
        return {"refused": True}
    return {
        "refused": False,
        "perplexity": result.perplexity,
        "nlls": torch.tensor([text.nll for text in result.per_text], dtype=torch.float64),
        "batches": sorted(len(texts[start : start + size]) for start in range(0, len(texts), size)),
    }


def corpus_perplexity(
    score: Callable[..., Any], tokenizer: Any, texts: list[str], batch_size: int, fault: str = ""
) -> tuple[float, list[float]]:
    """Perplexity and each text's NLL with at most one known fault; without any it is right."""
    order = sorted(range(len(texts)), key=lambda i: len(tokenizer(texts[i]).input_ids))
    order = [i for i in order if len(tokenizer(texts[i]).input_ids) > 1]
    if fault == "one-batch":
        batch_size = len(texts)
    nlls, tokens, means = [0.0] * len(texts), [0] * len(texts), []
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        if fault == "last-dropped" and start and len(rows) < batch_size:
            break
        batch = tokenizer([texts[i] for i in rows], padding=True, return_tensors="pt")
        costs, counts = score(batch.input_ids, batch.attention_mask)
        means.append(float(costs.sum() / counts.sum()))
        for i, cost, scored in zip(rows, costs.tolist(), counts.tolist(), strict=True):
            nlls[i], tokens[i] = cost, scored
    if not means:
        raise ValueError("no text has two tokens")
    each = [nll / n for nll, n in zip(nlls, tokens, strict=True) if n]
    value = math.exp(sum(nlls) / sum(tokens))
    match fault:
        case "mean-of-batches":
            value = math.exp(sum(means) / len(means))
        case "mean-of-texts":
            value = math.exp(sum(each) / len(each))
        case "mean-of-perplexities":
            value = sum(map(math.exp, each)) / len(each)
        case "over-texts":
            value = math.exp(sum(nlls) / len(texts))
        case "sorted":
            nlls = [nlls[i] for i in order]
    return value, nlls


def _wrong(fault: str) -> Any:
    return lambda inputs: call_corpus(lambda *given: corpus_perplexity(*given, fault), inputs)


def unless_refused(comparators: dict[str, Comparator]) -> Comparator:
    """Compares the named parts, or that texts without anything to score are refused."""

    def compare(expected: dict[str, Any], given: Any) -> str | None:
        refused = isinstance(given, dict) and given.get("refused") is True
        if expected["refused"]:
            return None if refused else "nothing can be scored: ValueError was wanted"
        if refused:
            return f"your function raised ValueError: {given.get('message', '')}"
        return parts(comparators)(expected, given)

    return compare


def _text(rng: np.random.Generator, length: int) -> str:
    return "".join(rng.choice(LETTERS, size=length).tolist())


def _case(rng: np.random.Generator, lengths: list[int], batch_size: int) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "padding_side": str(rng.choice(["left", "right"])),
        "model": {"kind": "llama", "seed": int(rng.integers(2**31))},
        "texts": [_text(rng, length) for length in lengths],
    }


def _twice(case: dict[str, Any]) -> dict[str, Any]:
    """The case with its first text in the place of the last, so that it is there twice."""
    return {**case, "texts": [*case["texts"][:-1], case["texts"][0]]}


def draw_total(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Short and long texts, so that a mean of means differs; one text twice; batches are full."""
    lengths = [*rng.integers(2, 4, 2 + size).tolist(), *rng.integers(9, 20, 2 + size).tolist()]
    return _twice(_case(rng, rng.permutation(lengths).tolist(), 1 + size % 2))


def draw_order(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Texts not in the order of their lengths, and one of them twice; batches are full."""
    lengths = rng.permutation(np.arange(2, 6 + 2 * size)).tolist()
    if lengths == sorted(lengths):
        lengths.reverse()
    return {**_twice(_case(rng, lengths, 2)), "leave_unchanged": True}


def draw_batches(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """A number of texts that batch_size does not divide."""
    batch_size = 2 + size
    count = batch_size * int(rng.integers(1, 3)) + int(rng.integers(1, batch_size))
    return _case(rng, rng.integers(3, 9, count).tolist(), batch_size)


def draw_short(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """An empty text, then texts of one token; in the last case nothing else. From short to long.

    In the second case one is a single letter of two tokens.
    """
    case = _case(rng, [[0, 5, 5], [0, 1, 5, 5, 5], [0, 1, 1]][size], 1)
    if size == 1:
        case["texts"][2] = str(rng.choice(list("éößñ")))
    return case


def _sizes(expected: list[int], given: Any) -> str | None:
    """Compares how many texts the batches hold that were scored, in any order."""
    if given == expected:
        return None
    return f"score was given batches of {given} texts; wanted {expected}, in any order"


NLLS = {"nlls": array(rtol=1e-4)}
CORPUS = Question(
    name="corpus",
    expected=expected,
    compare=unless_refused({"perplexity": number(rtol=1e-4)}),
    properties=(
        Property(
            "total",
            2,
            "the perplexity is exp of the total NLL over the total tokens of all texts",
            "Add up NLL and tokens over all batches; divide once, at the end.",
            draw_total,
        ),
        Property(
            "order",
            1,
            "each text's NLL comes in the order of the texts",
            "If you sort by length, put each result where its text was; a text may be there twice, "
            "and the list stays as it is.",
            draw_order,
            compare=unless_refused(NLLS),
        ),
        Property(
            "batches",
            1,
            "every batch holds batch_size texts, and the last one what is left",
            "range(0, len(texts), batch_size) gives where batches start; a slice may run past "
            "the end.",
            draw_batches,
            compare=unless_refused({"batches": _sizes}),
        ),
        Property(
            "short",
            1,
            "a text of fewer than two tokens adds nothing; if no text can be scored, ValueError",
            "Leave such texts out of the batches, with an NLL of 0, before you call score. Tokens "
            "count, not letters.",
            draw_short,
            compare=unless_refused(NLLS),
        ),
    ),
    misconceptions=(
        Misconception(
            "mean-of-batches",
            "you averaged the means of the batches, whatever the number of their tokens",
            _wrong("mean-of-batches"),
            ("total",),
        ),
        Misconception(
            "mean-of-texts",
            "you averaged the means of the texts, as if all were of one length",
            _wrong("mean-of-texts"),
            ("total",),
        ),
        Misconception(
            "mean-of-perplexities",
            "you averaged the perplexities of the texts",
            _wrong("mean-of-perplexities"),
            ("total",),
        ),
        Misconception(
            "over-texts",
            "you divided by the number of texts; it is the number of tokens that were scored",
            _wrong("over-texts"),
            ("total",),
        ),
        Misconception(
            "sorted",
            "your NLLs are in the order of the texts' lengths",
            _wrong("sorted"),
            ("order",),
        ),
        Misconception(
            "one-batch", "you scored all texts in one batch", _wrong("one-batch"), ("batches",)
        ),
        Misconception(
            "last-dropped",
            "you left the last batch out, which is smaller",
            _wrong("last-dropped"),
            ("batches",),
        ),
    ),
)
