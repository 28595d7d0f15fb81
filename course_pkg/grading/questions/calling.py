"""How an answer is called on the inputs of a case, and what it gives.

This runs on the student's side: it knows no question and no right answer. The judge does not trust
what it reports, since the student's code can change this side.
"""

import os
import stat
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from course_pkg.common.files import readable_size
from course_pkg.grading.questions.comparators import wrong_type
from course_pkg.grading.questions.plain_values import Array, NotPlain, as_plain

NOT_RUN = "not run, because an earlier input took too long"
AT_LINE = " (at `"  # before the line that raised an error
MAX_FILES = 16


class WrongUse(RuntimeError):
    """An answer does what its task rules out. The report shows the message alone."""


def outcome(
    call: tuple[str, ...] | str,
    answer: Any,
    inputs: Any,
    unchanged: bool = False,
    callers: ModuleType | None = None,
) -> dict[str, Any]:
    """What an answer gives for one case: {"value": …}, {"error": "…"} or {"unanswered": True}.

    Args:
        call: names of the inputs to pass, or a function of `callers` to call with the answer and
            the inputs, or () if the answer is the value itself.
        unchanged: whether a changed argument is an error.

    Example:

        >>> outcome(("values",), sorted, {"values": [3, 1]})
        {'value': [1, 3]}
    """
    if is_stub(answer):
        return {"unanswered": True}
    try:
        value = _call(call, answer, inputs, unchanged, callers) if call else answer
        return {"value": as_plain(value)}
    except NotImplementedError as error:
        return {"unanswered": True} if _is_of_stub(error) else {"error": _describe(error)}
    except NotPlain as error:
        return {"error": f"your answer gave {error}"}
    except Exception as error:
        return {"error": _describe(error)}


def is_stub(answer: Any) -> bool:
    """Whether a cell was left as it was: None, ..., NotImplemented, or a function that raises."""
    if isinstance(answer, FunctionType):  # one whose only statement is `raise NotImplementedError`
        return answer.__code__.co_names == ("NotImplementedError",)
    return any(answer is nothing for nothing in (None, ..., NotImplemented))


def _is_of_stub(error: NotImplementedError) -> bool:
    """Whether the answer's own code raises it, as a stub does; libraries say what they lack."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    if last.filename.startswith(_libraries()):
        return False
    return (last.line or "raise").startswith("raise")


def require_type(value: Any, kind: Any, wanted: str) -> Any:
    """The value, if it is of that type. Raises WrongUse, which says what was wanted."""
    if not isinstance(value, kind):
        raise WrongUse(wrong_type(wanted, value))
    return value


def require_pair(value: Any) -> list[Any]:
    """The two items of a tuple or list. Raises WrongUse for anything else."""
    items = list(require_type(value, (tuple, list), "a pair"))
    if len(items) != 2:
        raise WrongUse(f"expected a pair, but a list of {len(items)} was given")
    return items


def with_tensors(value: Any) -> Any:
    """A copy of a plain value in which every array is a torch tensor."""
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
    callers: ModuleType | None,
) -> Any:
    arguments = with_tensors(inputs)
    if isinstance(call, str):
        value = getattr(callers, call)(answer, arguments)
    else:
        value = answer(*(arguments[name] for name in call))
    for name in arguments:
        if unchanged and not _same(arguments[name], inputs[name]):
            raise WrongUse(
                f"your function changed `{name}`, which it was given; its caller may need that "
                "again, so work on a copy"
            )
    return value


def _same(now: Any, before: Any) -> bool:
    try:
        return as_plain(now) == before
    except NotPlain:
        return False


def _describe(error: Exception) -> str:
    """The error, and the line of the student's code that raised it, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if not frame.filename.startswith(_libraries())]
    where = f"{AT_LINE}{frames[0].line}`)" if frames and frames[0].line else ""
    told = str(error) if isinstance(error, WrongUse) else f"{type(error).__name__}: {error}"
    text = told[:400] + where[:200]
    return text.encode("utf-8", "replace").decode()


def _libraries() -> tuple[str, ...]:
    """The folders whose code is not the answer's."""
    return (os.path.dirname(os.path.dirname(__file__)), *set(sysconfig.get_paths().values()))


def read_folder(path: Any, most: int) -> dict[str, bytes]:
    """The files of a folder by name, without those whose names start with a dot.

    Raises:
        WrongUse: it is not a folder of plain files alone, or they have more than `most` bytes.
    """
    if not isinstance(path, str | os.PathLike):
        raise WrongUse(f"expected the path of a folder, but {type(path).__name__} was given")
    folder = Path(path)
    if folder.is_symlink():
        raise WrongUse(f"{folder} is a link; expected the folder itself")
    if not folder.is_dir():
        raise WrongUse(f"there is no folder {folder}: has your program written it?")
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    if len(names) > MAX_FILES:
        raise WrongUse(f"{folder} holds {len(names)} files; at most {MAX_FILES} can be submitted")
    files: dict[str, bytes] = {}
    left = most
    for name in names:
        files[name] = _content(folder / name, left, most)
        left -= len(files[name])
    return files


def _content(path: Path, left: int, most: int) -> bytes:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        kind = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder"}.get(stat.S_IFMT(status.st_mode))
        raise WrongUse(f"{path} is {kind or 'not a file'}; expected plain files only")
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        content = file.read(left + 1)
    if len(content) > left:
        raise WrongUse(
            f"{path} has {readable_size(status.st_size)}; the files of the folder may have "
            f"{readable_size(most)} in all"
        )
    return content
