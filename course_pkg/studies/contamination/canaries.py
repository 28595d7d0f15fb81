"""Canaries: marks in a test set that show later whether it was trained on.

A GUID in every file, drawn at random, can be searched in training data, and filtered out there. A
model may also be asked for it. The *exposure* of a secret says how much better than chance a model
knows it: among all the secrets R that could have been drawn,

    exposure = log2 |R| - log2 rank              rank: of the one that was drawn, 1 is the best

If the model has never seen it, the rank is uniform, so an exposure of at least x bits has the
probability 2**-x at most: rank / |R| is an exact p-value. With a small R, all of it is scored, and
nothing is approximated.

Sources: Carlini et al. 2019, "The Secret Sharer" (arXiv 1802.08232), on exposure; Srivastava et al.
2022 (BIG-bench), on canary strings. Chapter: evaluation/contamination.
"""

import math
import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from course_pkg.common.arguments import require_integer, require_string
from course_pkg.evaluation.statistics import score_array

_SEPARATORS = re.compile(r"[^0-9a-z]+")


@dataclass(frozen=True)
class Exposure:
    """The rank of an inserted secret among all candidates; equal ones rank before it."""

    rank: int
    candidates: int

    @property
    def bits(self) -> float:
        """log2 |R| - log2 rank: from 0 to log2 |R|."""
        return math.log2(self.candidates) - math.log2(self.rank)

    @property
    def p_value(self) -> float:
        """The probability of a rank at least this good for a model that never saw the secret."""
        return self.rank / self.candidates


def exposure(scores: Sequence[float], inserted: int) -> Exposure:
    """The exposure of a secret. scores: of all candidates, higher is more probable.

    inserted: the index of the one that was drawn at random and inserted. Raises ValueError for
    fewer than two candidates, a score that isn't finite, or an index outside of them.
    Source: Carlini et al. 2019, "The Secret Sharer".

    >>> found = exposure([-9.0, -5.0, -7.0, -6.0], inserted=2)
    >>> found.rank, round(found.bits, 3), found.p_value
    (3, 0.415, 0.75)
    """
    values = score_array(scores, "scores")
    if require_integer(inserted, "inserted", 0) >= len(values):
        raise ValueError(f"inserted is {inserted}, but there are {len(values)} candidates")
    return Exposure(int((values >= values[inserted]).sum()), len(values))


def new_guid(seed: int | None = None) -> str:
    """A random GUID (UUID, version 4). seed: for examples; leave it out for a real test set.

    >>> new_guid(seed=0)
    'e3e70682-c209-4cac-a29f-6fbed82c07cd'
    """
    if seed is None:
        return str(uuid.uuid4())
    bits = random.Random(seed).getrandbits(128)
    return str(uuid.UUID(int=bits, version=4))


def contains_guid(text: str, guid: str) -> bool:
    """Whether a text has this GUID, in any case, and with anything between its groups.

    Raises ValueError unless guid is one, TypeError unless text is a string.

    >>> guid = new_guid(seed=0)
    >>> contains_guid("CANARY E3E70682 C2094CAC\\nA29F6FBED82C07CD", guid)
    True
    """
    require_string(text, "text")
    try:
        digits = uuid.UUID(require_string(guid, "guid")).hex
    except ValueError:
        raise ValueError(f"{guid!r} is not a GUID: give 32 hexadecimal digits") from None
    return digits in _SEPARATORS.sub("", text.lower())
