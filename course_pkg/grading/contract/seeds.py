"""Where the randomness of a question comes from.

The cases of a question depend on a key, the student, the question, and the code that draws them:
they are the same at every regrade and resubmission, and nobody without the key can predict them.
Readers and stock nbgrader use the public key, so that everybody can reproduce what they see.

Chapter: appendix/for-instructors.
"""

import hashlib
import hmac
import unicodedata
from random import Random
from typing import Any

PUBLIC_KEY = b"public"


def same_name(name: str) -> str:
    """A name as it is compared: without surrounding space, case, and the ways to encode accents.

    >>> same_name(" Zoe\u0308 ") == same_name("ZO\u00cb")
    True
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).strip().casefold())


def question_rng(key: bytes, *parts: str) -> Random:
    """A generator that depends on `key` and every one of `parts`, and on nothing else.

    >>> a, b = (question_rng(PUBLIC_KEY, "ada", "lora-math/forward") for _ in range(2))
    >>> a.random() == b.random()
    True
    """
    message = b"".join(
        len(part).to_bytes(8, "big") + part for part in (p.encode("utf-8") for p in parts)
    )
    return Random(int.from_bytes(hmac.new(key, message, hashlib.sha256).digest(), "big"))


def numpy_rng(rng: Random) -> Any:
    """A numpy generator that continues the randomness of `rng`: for draws of arrays.

    >>> numpy_rng(Random(0)).integers(10) == numpy_rng(Random(0)).integers(10)
    np.True_
    """
    import numpy as np

    return np.random.default_rng(rng.getrandbits(128))
