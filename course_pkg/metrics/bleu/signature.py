"""The signature of a BLEU score: the settings without which two scores can't be compared.

The fields are those of sacrebleu's signature, so that the two can be compared by eye. The version
is this package's.

Source: Post 2018, "A Call for Clarity in Reporting BLEU Scores". Chapter: metrics/bleu-comparing.
"""

from course_pkg import __version__

SMOOTH_VALUES = {"none": 0.0, "floor": 0.1, "add-k": 1.0, "exp": 0.0}  # those of sacrebleu


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
    """Write the settings of a BLEU score as one string; they are valid already.

    reference_numbers: how many references the texts have; "var" if they have different numbers.
    max_order: shown only if it is not 4, because sacrebleu's signature doesn't have it.

    >>> signature({1}, "13a", False, 4).partition("|version:")[0]
    'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp'
    """
    value = SMOOTH_VALUES[smoothing] if smooth_value is None else smooth_value
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
