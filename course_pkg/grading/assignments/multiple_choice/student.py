"""`multiple-choice`, in the student's process: how answers that may raise ValueError are called."""

from collections.abc import Callable
from functools import partial
from typing import Any

from course_pkg.grading.questions.calling import require_pair

Inputs = dict[str, Any]


def encode(text: str, vocabulary: list[str]) -> list[str]:
    """The tokens of a text from left to right: each time the longest text of the vocabulary."""
    tokens = []
    while text:
        tokens.append(max(filter(text.startswith, vocabulary), key=len))
        text = text.removeprefix(tokens[-1])
    return tokens


def call_scored_tokens(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """What `scored_tokens(encode, context, options)` gives, or that it refuses an option."""
    refused = not all(option.strip() for option in inputs["options"])
    tokens_of = partial(encode, vocabulary=inputs["vocabulary"])
    outcome = _call(refused, answer, tokens_of, inputs["context"], inputs["options"])
    if "value" not in outcome:
        return outcome
    start, counts = require_pair(outcome["value"])
    return {"raised": "nothing", "start": start, "counts": counts}


def call_pass_at_k(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """What `pass_at_k(samples, correct, k)` gives, or that it refuses k."""
    samples, k = inputs["samples"], inputs["k"]
    return _call(min(samples) < k, answer, samples, inputs["correct"], k)


def _call(may_raise: bool, answer: Callable[..., Any], *given: Any) -> dict[str, Any]:
    try:
        return {"raised": "nothing", "value": answer(*given)}
    except ValueError:
        if not may_raise:
            raise
        return {"raised": "ValueError"}
