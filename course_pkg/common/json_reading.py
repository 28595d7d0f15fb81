"""JSON that others wrote: every way in which it can't be read is a ValueError in plain words.

`json.loads` also raises RecursionError, and for an integer of more than 4300 digits an error about
Python's settings.
Chapter: setup.
"""

import json
from typing import Any


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
