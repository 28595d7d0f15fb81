"""`rouge`, beside the student: how an answer is run on plain inputs.

It hands lists of tokens to the answer and gives back what came. It imports no reference
implementation, knows no right answer, and computes no score.

Chapter: exercises.
"""

from typing import Any

from course_pkg.grading.asking import call_with

from .sentences import by_hand

MASKED = (  # answers lie there: stubs stand instead
    "course_pkg.metrics",
    "rouge_score",
    "nltk",
    "rapidfuzz",
)


def _given(answer: Any, inputs: Any) -> Any:
    return answer


def call_rouge_n(answer: Any, inputs: Any) -> Any:
    """Call `rouge_n(candidate, reference, n)` on lists of tokens."""
    return call_with(answer, inputs, "candidate", "reference", "n")


def call_several(answer: Any, inputs: Any) -> Any:
    """Call `rouge_n_several(candidate, references, n, rule)`; rule: "best" or "pooled"."""
    return call_with(answer, inputs, "candidate", "references", "n", "rule")


def metered(most: int) -> type[str]:
    """A kind of text that may be compared or hashed `most` times in all, then raises RuntimeError.

    What makes an algorithm slow is counted, not timed: a busy machine can't cost a mark.

    >>> Token = metered(2)
    >>> Token("a") == Token("b"), Token("a") != Token("b")
    (False, True)
    """
    used = 0

    def count() -> None:
        nonlocal used
        used += 1
        if used > most:
            raise RuntimeError(
                f"your function compared tokens more than {most:,} times; a table of the lengths "
                "for all pairs of beginnings needs one comparison for each of its m·n entries"
            )

    class Token(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            count()
            return str.__eq__(self, other)

        def __ne__(self, other: object) -> bool:
            count()
            return str.__ne__(self, other)

        def __hash__(self) -> int:
            count()
            return str.__hash__(self)

    return Token


def call_lcs(answer: Any, inputs: Any) -> Any:
    """Call `lcs_length(a, b)`; where the inputs bound the comparisons, tokens are counted."""
    if "most" not in inputs:
        return call_with(answer, inputs, "a", "b")
    kind = metered(inputs["most"])
    return answer(*([kind(token) for token in inputs[side]] for side in ("a", "b")))


def call_rouge_l(answer: Any, inputs: Any) -> Any:
    """Call `rouge_l(candidate, reference, beta, lcs_length)` with an `lcs_length` that is right.

    It knows the length for these two texts alone, and says so when it is asked for others.
    """
    texts = [inputs["candidate"], inputs["reference"]]

    def lcs_length(a: Any, b: Any) -> int:
        asked = [list(a), list(b)]
        if asked not in (texts, texts[::-1]):
            raise ValueError("lcs_length was not called with the candidate and the reference")
        return inputs["lcs"]

    return answer(*map(list, texts), inputs["beta"], lcs_length)


def call_skip_bigrams(answer: Any, inputs: Any) -> Any:
    """Call `skip_bigrams(tokens, max_gap)`, and give its counts as a sorted list of triples."""
    counts = call_with(answer, inputs, "tokens", "max_gap")
    if not isinstance(counts, dict):
        raise TypeError(f"a {type(counts).__name__} was returned; wanted a Counter or a dict")
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in counts):
        raise TypeError("a key is not a tuple of two tokens")
    return sorted([first, second, count] for (first, second), count in counts.items() if count)


CALLS = {
    "by-hand/rouge-1": _given,
    "by-hand/rouge-2": _given,
    "by-hand/rouge-l": _given,
    "by-hand/clipping-and-order": _given,
    "rouge-n": call_rouge_n,
    "several": call_several,
    "lcs": call_lcs,
    "rouge-l": call_rouge_l,
    "skip-bigrams": call_skip_bigrams,
}
VARIANTS = {"by-hand": by_hand}
