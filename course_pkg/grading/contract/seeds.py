"""Where the randomness of a question comes from.

A draw depends on a key, the student, the question and the text of the checks: the same on every
regrade and resubmission, and unknown before hand-in to anyone without the key. Readers and stock
nbgrader use the public key, so that what they see can be seen again.

Chapter: appendix/for-instructors.
"""

import hashlib
import hmac
from pathlib import Path

import numpy as np

PUBLIC_KEY = b"public"


def question_rng(key: bytes, *parts: str) -> np.random.Generator:
    """A generator that depends on `key` and every one of `parts`, and on nothing else.

    >>> a, b = (question_rng(PUBLIC_KEY, "ada", "lora-math/forward") for _ in range(2))
    >>> a.integers(1000) == b.integers(1000)
    np.True_
    """
    message = b"".join(
        len(part).to_bytes(8, "big") + part for part in (p.encode("utf-8") for p in parts)
    )
    digest = hmac.new(key, message, hashlib.sha256).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def checks_hash(folder: Path) -> str:
    """SHA-256 over the names and contents of every Python file below `folder`."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
