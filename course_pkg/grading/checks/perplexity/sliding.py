"""`perplexity/sliding`: a text longer than the model's window, each token scored once.

Chapter: exercises.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from course_pkg.metrics.perplexity.score import windows
from course_pkg.metrics.perplexity.token_scores import token_log_probs

from ...contract.compare import array, parts
from ...contract.questions import Misconception, Property, Question
from .ask import call_sliding
from .models import VOCABULARY, build_model

close, count = array(rtol=1e-4), array(rtol=1e-9)


def expected(inputs: dict[str, Any]) -> dict[str, Any]:
    """The reference's windows over the text, and what is scored in them."""
    ids = inputs["input_ids"].numpy().tolist()
    plan = windows(len(ids), inputs["window"], inputs["stride"])
    seen = [ids[window.start : window.end] for window in plan]
    first = [window.first - window.start for window in plan]
    scores = token_log_probs(build_model(inputs["model"]), seen, first=first, batch_size=1)
    return {
        "nll": -torch.cat(scores).double().sum(),
        "tokens": torch.tensor(float(sum(map(len, scores))), dtype=torch.float64),
        "windows": seen,
    }


def sliding_nll(
    model: nn.Module, input_ids: torch.Tensor, window: int, stride: int, fault: str = ""
) -> tuple[float, int]:
    """The NLL of a text through windows, with at most one known fault; without any it is right."""
    total, tokens, done = 0.0, 0, 1  # the first token is never scored
    for start in range(0, len(input_ids), window if fault == "no-overlap" else stride):
        part = input_ids[start : start + window]
        if fault == "tail-dropped" and start and len(part) < window:
            break
        with torch.no_grad():
            logits = model(input_ids=part[None]).logits[0, :-1]
        costs = -logits.log_softmax(-1).gather(-1, part[1:, None])[:, 0]
        match fault:
            case "twice":
                new = costs
            case "stride-only":
                new = costs[max(0, len(costs) - stride) :]
            case _:
                new = costs[max(done - start - 1, 0) :]
        total, tokens, done = total + float(new.sum()), tokens + len(new), start + len(part)
        if done == len(input_ids) and fault != "no-end":
            break
    return total, tokens


def _wrong(fault: str) -> Any:
    return lambda inputs: call_sliding(lambda *given: sliding_nll(*given, fault), inputs)


def same_windows(expected: list[list[int]], given: Any) -> str | None:
    """Compares the windows that a model saw, in any order.

    The last token of each may be missing: it only is a target.
    """
    if not isinstance(given, list) or len(given) != len(expected):
        seen = len(given) if isinstance(given, list) else "no"
        return f"the model saw {seen} windows; wanted {len(expected)}"
    for want, have in zip(sorted(expected), sorted(given), strict=True):
        if have not in (want, want[:-1]):
            return f"a window holds {have}; wanted {want}"
    return None


def _case(
    rng: np.random.Generator, kind: str, length: int, window: int, stride: int
) -> dict[str, Any]:
    return {
        "model": {"kind": kind, "seed": int(rng.integers(2**31))},
        "window": window,
        "stride": stride,
        "input_ids": rng.integers(0, VOCABULARY, length),
    }


def _several(rng: np.random.Generator, kind: str, size: int) -> dict[str, Any]:
    """Three to five windows, of which the last is not full."""
    window = 4 + size + int(rng.integers(2))
    stride = int(rng.integers(2, window - 1))
    length = window + stride * (1 + size) + int(rng.integers(1, stride))
    return _case(rng, kind, length, window, stride)


def draw_once(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """On a bigram model, where it does not matter what else a window shows."""
    return _several(rng, "bigram", size)


def draw_windows(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """On a Llama; only what it sees is compared."""
    return _several(rng, "llama", size)


def draw_fits(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """A text shorter than the window, or as long as it; on a Llama."""
    length = 4 + size
    window = length + int(rng.integers(1, 9)) * (size != 1)
    return _case(rng, "llama", length, window, int(rng.integers(1, length - 1)))


SLIDING = Question(
    name="sliding",
    expected=expected,
    compare=parts({"nll": close, "tokens": count}),
    properties=(
        Property(
            "once",
            2,
            "every token but the first is scored, and scored once",
            "Remember how far the windows before have scored; in a new one, all before that is "
            "context. In the first window nothing is.",
            draw_once,
        ),
        Property(
            "windows",
            1,
            "windows start every stride tokens, hold at most window tokens, and end with the text",
            "input_ids[start : start + window] for start = 0, stride, 2 · stride, …; stop after "
            "the first window that reaches the end.",
            draw_windows,
            compare=parts({"windows": same_windows}),
        ),
        Property(
            "fits",
            1,
            "a text that fits in one window is scored in one pass, as if there were no windows",
            "Its length may be less than the window or equal to it.",
            draw_fits,
            compare=parts({"nll": close, "tokens": count, "windows": same_windows}),
        ),
    ),
    misconceptions=(
        Misconception(
            "twice",
            "you scored all of every window, so tokens where two overlap were scored twice",
            _wrong("twice"),
            ("once",),
        ),
        Misconception(
            "stride-only",
            "you scored the last stride tokens of every window; the first window has no context "
            "to leave out, the last may have fewer tokens that are new",
            _wrong("stride-only"),
            ("once", "fits"),
        ),
        Misconception(
            "no-overlap",
            "your windows don't overlap, so the first token of each was not scored",
            _wrong("no-overlap"),
            ("once", "windows"),
        ),
        Misconception(
            "tail-dropped",
            "you left out the last window, which is not full",
            _wrong("tail-dropped"),
            ("once", "windows"),
        ),
        Misconception(
            "no-end",
            "you went on after the text's end was reached: the last windows hold nothing new",
            _wrong("no-end"),
            ("windows", "fits"),
        ),
    ),
)
