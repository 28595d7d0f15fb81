"""Whether an answer is right: exact match under a named normalization, and F1 of words::

    none      the texts as they are
    strip     white space at both ends removed
    quasi     lower case; ASCII punctuation and the words a, an, the removed; white space joined
    number    "$1,234.0" is "1234": signs of currency, percent and thousands removed, value compared

"quasi" turns the option letter A into nothing, which is an error here. F1 compares words between
spaces, so it does not suit Chinese. Sources: Rajpurkar et al. 2016 (SQuAD), section 6.1; Liang et
al. 2022 (HELM), appendix C.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from decimal import Context, Decimal, InvalidOperation

from course_pkg.common.arguments import require_choice, require_string, text_list

NORMALIZATIONS = ("none", "strip", "quasi", "number")
DIGITS = 400  # "1e999999999" would fill the memory
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER_SIGNS = str.maketrans({"−": "-", ",": None, "$": None, "€": None, "£": None, "%": None})


def normalize(text: str, normalization: str) -> str:
    """The text in the form in which it is compared.

    >>> normalize("The  Eiffel-Tower!", "quasi"), normalize("$1,234.50", "number")
    ('eiffeltower', '1234.5')
    """
    require_string(text, "text")
    require_choice(normalization, "normalization", NORMALIZATIONS)
    if normalization == "strip":
        return text.strip()
    if normalization == "quasi":
        bare = text.lower().translate(_PUNCTUATION)
        return " ".join(_ARTICLES.sub(" ", bare).split())
    if normalization == "number":
        bare = text.strip().rstrip(".").translate(_NUMBER_SIGNS).strip()
        try:
            value = Decimal(bare)
        except InvalidOperation:
            return text.strip()  # not a number: compared as it is
        if not value.is_finite() or abs(value.adjusted()) > DIGITS:
            return text.strip()
        return f"{value.normalize(Context(prec=DIGITS)):f}" if value else "0"
    return text


def exact_match(answer: str, references: str | Sequence[str], normalization: str = "strip") -> bool:
    """Whether the answer equals a reference, all normalized; ValueError if one becomes empty."""
    wanted = {_reference(text, normalization) for text in text_list(references, "reference")}
    return normalize(answer, normalization) in wanted


def f1(answer: str, references: str | Sequence[str]) -> float:
    """The best F1 of words: 2 · shared / (words of the answer + words of the reference).

    Words are those after "quasi"; ValueError if that leaves nothing of a reference.

    >>> f1("in the Louvre, Paris", ["Paris", "Paris, France"])  # 2 · 1 / (3 + 1)
    0.5
    """
    words = Counter(normalize(answer, "quasi").split())
    best = 0.0
    for reference in text_list(references, "reference"):
        wanted = Counter(_reference(reference, "quasi").split())
        shared = (words & wanted).total()
        best = max(best, 2 * shared / (words.total() + wanted.total()))
    return best


def _reference(text: str, normalization: str) -> str:
    normalized = normalize(text, normalization)
    if not normalized:
        raise ValueError(
            f"nothing is left of the reference {text!r} after {normalization!r}, so that any "
            "answer without words would match: use 'strip'"
        )
    return normalized
