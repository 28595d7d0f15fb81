"""How an answer is called on the inputs of a case, and what comes out of it.

This runs on the student's side: it knows no question and no right answer.

Chapter: appendix/for-instructors.
"""

import os
import sysconfig
import traceback
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from .values import Array, NotPlain, as_crossing

NOT_RUN = "not run, because an earlier input took too long"
AT_LINE = " (at `"  # before the line that raised an error
_UNANSWERED = (None, ..., NotImplemented)


class WrongUse(RuntimeError):
    """An answer returned, called or changed something in a way that its task rules out.

    The report shows the message alone, without the name of the class.
    """


def outcome(
    call: tuple[str, ...] | str,
    answer: Any,
    inputs: Any,
    unchanged: bool = False,
    student: ModuleType | None = None,
) -> dict[str, Any]:
    """What an answer gives for one case: {"value": …}, {"error": "…"} or {"unanswered": True}.

    call: names of the inputs to pass, or a function of `student` to call with the answer and the
    inputs, or () if the answer is the value itself. unchanged: whether a changed argument is an
    error. The value is a copy, as it looks on the other side of the sandbox.

    >>> outcome(("values",), sorted, {"values": [3, 1]})
    {'value': [1, 3]}
    >>> outcome(("values",), list.sort, {"values": [3, 1]}, unchanged=True)["error"][:30]
    'your function changed `values`'
    """
    if is_unanswered(answer):
        return {"unanswered": True}
    try:
        value = _call(call, answer, inputs, unchanged, student) if call else answer
        return {"value": as_crossing(value)}
    except NotImplementedError:
        return {"unanswered": True}
    except NotPlain as error:
        return {"error": f"your answer gave {error}"}
    except Exception as error:
        return {"error": _describe(error)}


def is_unanswered(answer: Any) -> bool:
    """Whether a cell was left as it was: None, ..., NotImplemented, or a function that raises it.

    >>> is_unanswered(...), is_unanswered(0)
    (True, False)
    """
    if isinstance(answer, FunctionType):  # one whose only statement is `raise NotImplementedError`
        return answer.__code__.co_names == ("NotImplementedError",)
    return any(answer is nothing for nothing in _UNANSWERED)


def with_tensors(value: Any) -> Any:
    """A copy of a plain value in which every array is a torch tensor.

    >>> with_tensors({"n": [1, 2]})
    {'n': [1, 2]}
    """
    match value:
        case Array():
            import torch

            tensor = torch.from_numpy(value.numpy())
            return tensor.bfloat16() if value.dtype == "bfloat16" else tensor
        case dict():
            return {key: with_tensors(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(with_tensors(item) for item in value)
    return value


def _call(
    call: tuple[str, ...] | str,
    answer: Callable[..., Any],
    inputs: dict[str, Any],
    unchanged: bool,
    student: ModuleType | None,
) -> Any:
    given = with_tensors(inputs)
    if isinstance(call, str):
        value = getattr(student, call)(answer, given)
    else:
        value = answer(*(given[name] for name in call))
    changed = [name for name in given if unchanged and not _same(given[name], inputs[name])]
    if changed:
        raise WrongUse(
            f"your function changed `{changed[0]}`, which it was given; its caller may need that "
            "again, so work on a copy"
        )
    return value


def _same(now: Any, before: Any) -> bool:
    try:
        return as_crossing(now) == before
    except NotPlain:
        return False


def _describe(error: Exception) -> str:
    """The error, and the line of the student's that raised it, in one line."""
    libraries = (
        os.path.dirname(os.path.dirname(__file__)),
        *set(sysconfig.get_paths().values()),
    )
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries)
    ]
    where = f"{AT_LINE}{frames[0].line}`)" if frames and frames[0].line else ""
    told = str(error) if isinstance(error, WrongUse) else f"{type(error).__name__}: {error}"
    text = told[:400] + where[:200]
    return text.encode("utf-8", "replace").decode()
