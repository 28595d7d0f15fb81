"""`perplexity/log-probs`: what each token costs, from the logits that predict it.

Chapter: exercises.
"""

from typing import Any

import numpy as np
import torch

from course_pkg.metrics.perplexity.token_scores import target_log_probs

from ...contract.compare import Comparator, array
from ...contract.questions import Misconception, Property, Question
from ...contract.values import Array

close = array(rtol=1e-4, atol=1e-6)


def up_to_a_factor(compare: Comparator) -> Comparator:
    """Compares log-probabilities as if their base and their sign were free.

    Both are the business of one property, and must not cost the marks of the others.
    """

    def compare_scaled(expected: Array, given: Any) -> str | None:
        if isinstance(given, Array) and given.shape == expected.shape:
            want, have = (a.numpy().astype("float64") for a in (expected, given))
            if np.isfinite(have).all() and (factor := (want * have).sum() / (want * want).sum()):
                return compare(expected, Array.of(have / factor))
        return compare(expected, given)

    return compare_scaled


def _tensors(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.from_numpy(inputs[name].numpy()) for name in ("logits", "input_ids"))


def expected(inputs: dict[str, Any]) -> torch.Tensor:
    """log p(token t+1 | tokens up to t), in nats, (batch, length − 1)."""
    logits, ids = _tensors(inputs)
    return target_log_probs(logits[:, :-1], ids[:, 1:])


def draw_shift(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Logits that are log-probabilities already: only which row goes with which token shows."""
    batch, length, vocabulary = 1 + size, 4 + size, 5 + size
    logits = torch.from_numpy(2 * rng.standard_normal((batch, length, vocabulary)))
    ids = rng.integers(0, vocabulary, (batch, length))
    return {"logits": logits.log_softmax(-1).float(), "input_ids": ids}


def draw_value(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """The same logits at every position, and the same token: no shift shows."""
    batch, length, vocabulary = 2 + size, 3, 4 + size
    logits = 2 * rng.standard_normal((batch, 1, vocabulary)).astype("float32")
    ids = rng.integers(0, vocabulary, (batch, 1))
    return {
        "logits": np.repeat(logits, length, axis=1),
        "input_ids": np.repeat(ids, length, axis=1),
    }


def draw_stable(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """As for the value, but targets of probability e⁻¹⁵⁰ (small), or logits near 400 (large)."""
    case = draw_value(rng, size)
    if size != 1:
        first = case["input_ids"][0, 0]
        case["logits"][0, :, first] -= np.float32(150 + 50 * rng.random())
    if size != 0:
        case["logits"] += np.float32(400)
    return {**case, "leave_unchanged": True}


def _wrong(change: Any) -> Any:
    return lambda inputs: change(*_tensors(inputs))


def _gather(scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return scores.gather(-1, ids[..., None])[..., 0]


LOG_PROBS = Question(
    name="log-probs",
    expected=expected,
    compare=up_to_a_factor(close),
    properties=(
        Property(
            "shift",
            2,
            "the logits at position t score the token at t + 1; the first token is not scored",
            "logits[:, :-1] are the predictions of input_ids[:, 1:].",
            draw_shift,
        ),
        Property(
            "value",
            1,
            "the values are natural logarithms of probabilities over the vocabulary",
            "log_softmax over the last dimension; the logarithm of a probability is at most 0.",
            draw_value,
            compare=close,
        ),
        Property(
            "stable",
            1,
            "large logits and tiny probabilities give finite numbers",
            "torch.log(softmax(…)) is −∞ where a probability rounds to 0; log_softmax is not, and "
            "leaves the logits as they are.",
            draw_stable,
        ),
    ),
    misconceptions=(
        Misconception(
            "unshifted",
            "you scored each token by the logits of its own position, which predict the next one",
            _wrong(lambda logits, ids: _gather(logits.log_softmax(-1), ids)[:, 1:]),
            ("shift",),
        ),
        Misconception(
            "backwards",
            "you scored each token by the logits of the position after it",
            _wrong(lambda logits, ids: _gather(logits.log_softmax(-1)[:, 1:], ids[:, :-1])),
            ("shift",),
        ),
        Misconception(
            "bits",
            "your logarithms are to base 2; nats are natural logarithms",
            _wrong(lambda logits, ids: target_log_probs(logits[:, :-1], ids[:, 1:]) / np.log(2)),
            ("value",),
        ),
        Misconception(
            "negated",
            "this is the NLL; the log-probability is its negative",
            _wrong(lambda logits, ids: -target_log_probs(logits[:, :-1], ids[:, 1:])),
            ("value",),
        ),
        Misconception(
            "probabilities",
            "these are probabilities; take their logarithms",
            _wrong(lambda logits, ids: target_log_probs(logits[:, :-1], ids[:, 1:]).exp()),
            ("shift", "value", "stable"),
        ),
        Misconception(
            "raw-logits",
            "these are the logits themselves, which are no log-probabilities yet: normalize them",
            _wrong(lambda logits, ids: _gather(logits[:, :-1], ids[:, 1:])),
            ("value", "stable"),
        ),
        Misconception(
            "over-positions",
            "you normalized over the positions (dimension 1); the vocabulary is the last dimension",
            _wrong(lambda logits, ids: _gather(logits.log_softmax(1)[:, :-1], ids[:, 1:])),
            ("shift", "value", "stable"),
        ),
    ),
)
