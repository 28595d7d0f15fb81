"""Limits: how much one request, one connection and all of them together may take.

Each limit answers a way to exhaust the server: memory (lengths, bodies, slow readers), the engine's
time (lengths, samples), connections and their number (slow senders), and waiting without end (a
full queue answers at once, so that a client can go elsewhere). Chapter: deployment/server.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """The limits of a server. Raises ValueError for one that makes no sense.

    prompt_tokens: of one prompt; None means as many as the model takes. max_tokens: new tokens of
    one sample. choices: samples of one request, over all its prompts. waiting: requests that may
    wait beyond those that the engine runs at once. connections: open ones. body_bytes: of a
    request. backlog: tokens that a reader may be behind before its request is aborted.
    Seconds: read_seconds for the headers, and again for the body; write_seconds without a byte
    taken by the reader; request_seconds for a whole answer; shutdown_seconds to finish requests.

    >>> Limits(choices=0)
    Traceback (most recent call last):
    ...
    ValueError: choices is 0: expected a number above 0
    """

    prompt_tokens: int | None = None
    max_tokens: int = 4096
    choices: int = 16
    waiting: int = 64
    connections: int = 512
    body_bytes: int = 1 << 20
    backlog: int = 1024
    read_seconds: float = 20.0
    write_seconds: float = 30.0
    request_seconds: float = 600.0
    shutdown_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            kind = float if isinstance(field.default, float) else int
            if value is None and field.default is None:
                continue
            if not isinstance(value, int | kind) or isinstance(value, bool):
                expected = "a number" if kind is float else "a whole number"
                raise ValueError(f"{name} is {value!r}: expected {expected}")
            if not (value > 0 or (name == "waiting" and value == 0)):
                raise ValueError(f"{name} is {value!r}: expected a number above 0")
