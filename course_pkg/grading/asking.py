"""How a student's function is called on the inputs of a case, and what it may do to them.

On the student's side of the wall, for the `ask` of any assignment: it knows no question and no
right answer.

Chapter: exercises.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any


def call_with(
    answer: Callable[..., Any],
    inputs: Mapping[str, Any],
    *names: str,
    before: tuple[Any, ...] = (),
    read: Callable[[Any], Any] = deepcopy,
    changed: type[Exception] = ValueError,
) -> Any:
    """Call the answer with the inputs of those names; does it leave them as they are?

    That is only asked where the case says `leave_unchanged`: it must not cost the marks of every
    property. before: what comes first among the arguments. read: gives the answer a value of its
    own for an input, such as a list's copy or an array's tensor. changed: what is raised if the
    answer changed one; not ValueError where that is an answer.

    >>> call_with(sorted, {"values": [3, 1], "leave_unchanged": True}, "values")
    [1, 3]
    >>> call_with(list.sort, {"values": [3, 1], "leave_unchanged": True}, "values")
    Traceback (most recent call last):
    ...
    ValueError: your function changed `values`, ... so work on a copy
    """
    given = [read(inputs[name]) for name in names]
    value = answer(*before, *given)
    if inputs.get("leave_unchanged"):
        for name, now in zip(names, given, strict=True):
            if not _equal(now, read(inputs[name])):
                raise changed(
                    f"your function changed `{name}`, which it was given; whoever calls it may "
                    "need that again, so work on a copy"
                )
    return value


def _equal(one: Any, other: Any) -> bool:
    return one.equal(other) if hasattr(one, "equal") else one == other  # a tensor's, or a list's
