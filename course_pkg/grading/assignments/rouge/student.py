"""`rouge`, in the student's process: how some answers are called."""

from typing import Any

from course_pkg.grading.questions.calling import WrongUse
from course_pkg.grading.questions.comparators import wrong_type


def call_lcs(answer: Any, inputs: Any) -> Any:
    """Call `lcs_length(a, b)`; in long texts, tokens count comparisons (time depends on load)."""
    if "_most" not in inputs:
        return answer(inputs["a"], inputs["b"])
    left = iter(range(inputs["_most"]))

    def counted(method: Any) -> Any:
        def call(*operands: Any) -> Any:
            if next(left, None) is None:
                most = f"{inputs['_most']:,}"
                raise WrongUse(f"your function compared tokens more than {most} times")
            return method(*operands)

        return call

    methods = {name: counted(getattr(str, name)) for name in ("__eq__", "__ne__", "__hash__")}
    token = type("Token", (str,), methods)
    return answer(*(list(map(token, inputs[name])) for name in "ab"))


def call_rouge_l(answer: Any, inputs: Any) -> Any:
    """Call `rouge_l(candidate, reference, beta, lcs_length)`; `lcs_length` knows two texts only."""
    texts = [inputs["candidate"], inputs["reference"]]
    known = sorted(map(list, texts))

    def lcs_length(a: Any, b: Any) -> int:
        if sorted([list(a), list(b)]) != known:
            raise WrongUse("lcs_length was not called with the candidate and the reference")
        return inputs["lcs"]

    return answer(*texts, inputs["beta"], lcs_length)


def call_skip_bigrams(answer: Any, inputs: Any) -> Any:
    """Call `skip_bigrams(tokens, max_gap)`; its counts as a sorted list [first, second, times]."""
    counts = answer(inputs["tokens"], inputs["max_gap"])
    if not isinstance(counts, dict) or any(not isinstance(pair, tuple) for pair in counts):
        what = "a Counter or a dict, in which each key is a tuple of two tokens"
        raise WrongUse(wrong_type(what, counts))
    return sorted([*pair, times] for pair, times in counts.items() if times)
