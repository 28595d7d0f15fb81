"""How long work says how far it is: it calls a function with the share that is done.

Chapter: evaluation/likelihood-and-generation.
"""

from collections.abc import Callable

Progress = Callable[[float], None]  # from 0 to 1


def silent(share: float) -> None:
    """Tell nobody."""
