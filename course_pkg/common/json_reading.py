"""JSON that others wrote, or may have changed: what can't be read is an error in plain words.

`json.loads` also raises RecursionError, and for an integer of more than 4300 digits an error about
Python's settings.
"""

import json
from dataclasses import dataclass
from typing import Any

NUMBER = (int, float)


def parse_json(data: str | bytes) -> Any:
    """The value. Raises ValueError for anything else than JSON that Python can read.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise ValueError("an integer has more digits than Python reads") from None


@dataclass(frozen=True)
class Maybe:
    """A form, or null."""

    form: Any


def require_form(value: Any, form: Any, name: str) -> None:
    """Raise TypeError or ValueError, with the place, for a value of another form.

    Args:
        form: a type, or several; [form] for a list; {key: form} for an object, which may have
            further keys, and lack those that end in "?". True and False are no numbers.

    >>> require_form({"scores": [1, "x"]}, {"scores": [NUMBER], "group?": str}, "the sample")
    Traceback (most recent call last):
    ...
    TypeError: the sample.scores[1] is 'x' (str)
    """
    if isinstance(form, Maybe):
        if value is not None:
            require_form(value, form.form, name)
        return
    kind = {list: list, dict: dict}.get(type(form), form)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is {value!r:.40} ({type(value).__name__})")
    if isinstance(form, list):
        for number, item in enumerate(value):
            require_form(item, form[0], f"{name}[{number}]")
    elif isinstance(form, dict):
        for key, inner in form.items():
            needed = key.removesuffix("?")
            if needed in value:
                require_form(value[needed], inner, f"{name}.{needed}")
            elif needed == key:
                raise ValueError(f"{name} has no {key!r}")
