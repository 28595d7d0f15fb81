"""Admission: how much a server takes on, and who comes in."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.deployment.api_errors import ApiError, busy


@dataclass(frozen=True)
class Limits:
    """The limits of a server. Raises ValueError or TypeError for one that makes no sense.

    Attributes:
        prompt_tokens: of one prompt; None means as many as the model takes.
        max_tokens: new tokens of one sample.
        choices: samples of one request, over all its prompts.
        waiting: requests that may wait beyond those that the engine runs at once.
        backlog: tokens that a reader may be behind before its request is aborted.
        constraint_characters: of a regular expression, or a schema as JSON.
        compiling: different constraints that may wait for their compiler.
        read_seconds: for the headers, and again for the body.
        write_seconds: without a byte taken by the reader.
        request_seconds: for a whole answer.
        shutdown_seconds: to finish requests.
    """

    prompt_tokens: int | None = None
    max_tokens: int = 4096
    choices: int = 16
    waiting: int = 64
    connections: int = 512
    body_bytes: int = 1 << 20
    backlog: int = 1024
    constraint_characters: int = 1 << 15
    compiling: int = 8
    read_seconds: float = 20.0
    write_seconds: float = 30.0
    compile_seconds: float = 10.0
    request_seconds: float = 600.0
    shutdown_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, float):
                require_between(value, field.name, 0, math.inf)
            elif value is not None or field.default is not None:
                require_integer(value, field.name, 0 if field.name == "waiting" else 1)


class Gate:
    """Who may come in: places for `places` samples at once, until it is closed.

    Attributes:
        open: requests that are in.
        taken: their places.
    """

    def __init__(self, places: int):
        self.places = places
        self.open = 0
        self.taken = 0
        self.closing = False
        self._seconds = 1.0  # an average of how long requests take; recent ones count more

    @contextmanager
    def place(self) -> Iterator["Reservation"]:
        """A place for one request, which can take further ones for its samples.

        Raises:
            ApiError: 503 after closing, 429 if all places are taken.
        """
        if self.closing:
            raise ApiError(503, "the server is shutting down", headers={"Retry-After": "5"})
        places = Reservation(self)
        places.take(1)
        self.open += 1
        start = time.monotonic()
        try:
            yield places
        finally:
            self.open -= 1
            self.taken -= places.own
            self._seconds += 0.1 * (time.monotonic() - start - self._seconds)

    def check(self, places: int, others: int) -> None:
        """Raise ApiError (429) if so many places are not free. others: those of other requests."""
        if self.taken + places > self.places:
            seconds = min(60, math.ceil(self._seconds / self.places))
            running = f"{others} samples are running or waiting"
            raise busy(f"{running}, and this server takes {self.places}", seconds)


class Reservation:
    """One request's places. own: how many it has now."""

    def __init__(self, gate: Gate):
        self.own = 0
        self._gate = gate

    def take(self, places: int) -> None:
        """Take further ones. Raises ApiError (429) if they are not free."""
        self._gate.check(places, self._gate.taken - self.own)
        self.own += places
        self._gate.taken += places

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave them to others, for what has limits of its own; then take as many again."""
        before = self.own
        self.own = 0
        self._gate.taken -= before
        yield
        self.take(before)
