"""The signature of a BLEU score: the settings without which two scores can't be compared.

The fields are those of sacrebleu's signature, so that the two can be compared by eye. The version
is this package's.

Source: Post 2018, "A Call for Clarity in Reporting BLEU Scores". Chapter: metrics/bleu-comparing.
"""

import math
from collections.abc import Sequence

from course_pkg import __version__

SMOOTH_VALUES = {"none": 0.0, "floor": 0.1, "add-k": 1.0, "exp": 0.0}  # those of sacrebleu


def checked_smooth_value(smoothing: str, value: float | None) -> float:
    """The value to smooth with: `value`, or sacrebleu's for this smoothing. Raises ValueError.

    >>> checked_smooth_value("floor", None)
    0.1
    """
    if not isinstance(smoothing, str) or smoothing not in SMOOTH_VALUES:
        raise ValueError(f"smoothing must be one of {', '.join(SMOOTH_VALUES)}, got {smoothing!r}")
    if value is None:
        return SMOOTH_VALUES[smoothing]
    if smoothing in ("none", "exp"):
        raise ValueError(
            f"smooth_value is not used with smoothing {smoothing!r}, got {value!r}; leave it out"
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"smooth_value must be a number of at least 0, got {value!r}")
    if smoothing == "floor" and value > 1:
        raise ValueError(
            f"smooth_value must be at most 1 (a whole match) with smoothing 'floor', got {value!r}"
        )
    return value


def check_counts(matches: Sequence[int], totals: Sequence[int], *lengths: int) -> None:
    """Raise ValueError unless there are 0 to `total` matches of each order, and lengths >= 0.

    >>> check_counts([4, 2], [5], 5, 6)
    Traceback (most recent call last):
    ...
    ValueError: matches and totals must have one count per order, got [4, 2] and [5]
    """
    if len(matches) != len(totals) or not len(matches):
        raise ValueError(
            f"matches and totals must have one count per order, got {matches} and {totals}"
        )
    if not all(0 <= match <= total for match, total in zip(matches, totals, strict=True)):
        raise ValueError(
            f"each order must have from 0 to all of its n-grams matched, got {matches} of {totals}"
        )
    if not all(length >= 0 for length in lengths):
        raise ValueError(f"lengths must be at least 0, got {lengths}")


def signature(
    reference_numbers: set[int],
    tokenize: str,
    lowercase: bool,
    max_order: int,
    *,
    smoothing: str = "exp",
    smooth_value: float | None = None,
    effective_order: bool = False,
) -> str:
    """The settings of a BLEU score as one string.

    reference_numbers: how many references the texts have; "var" if they have different numbers.
    max_order: shown only if it is not 4, because sacrebleu's signature doesn't have it.

    >>> signature({1}, "13a", False, 4).partition("|version:")[0]
    'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp'
    """
    value = checked_smooth_value(smoothing, smooth_value)
    fields = {
        "nrefs": str(*reference_numbers) if len(reference_numbers) == 1 else "var",
        "case": "lc" if lowercase else "mixed",
        "eff": "yes" if effective_order else "no",
        "tok": tokenize,
        "smooth": smoothing if smoothing in ("none", "exp") else f"{smoothing}[{value:.2f}]",
    }
    if max_order != 4:
        fields["order"] = str(max_order)
    fields["version"] = f"course_pkg {__version__}"
    return "|".join(f"{name}:{text}" for name, text in fields.items())
