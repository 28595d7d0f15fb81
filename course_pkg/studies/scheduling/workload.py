"""Requests for a simulated server: when they arrive, and how long prompts and answers are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_pkg.common.arguments import require_between, require_integer

if TYPE_CHECKING:  # imported by what draws: requests that are given need no numpy
    import numpy as np
    from numpy.random import Generator


@dataclass(frozen=True)
class SimulatedRequest:
    """One request: arrival in seconds, and the tokens of its prompt and of its answer."""

    arrival: float
    prompt: int
    output: int

    def __post_init__(self):
        require_between(self.arrival, "arrival", 0, math.inf, closed=True)
        require_integer(self.prompt, "prompt")
        require_integer(self.output, "output")


def requests(
    arrivals: Sequence[float], prompts: Sequence[int], outputs: Sequence[int]
) -> list[SimulatedRequest]:
    """Requests from three sequences of equal length."""
    if not len(arrivals) == len(prompts) == len(outputs):
        sizes = f"{len(arrivals)} arrivals, {len(prompts)} prompts and {len(outputs)} outputs"
        raise ValueError(f"{sizes}: give equally many")
    rows = zip(arrivals, prompts, outputs, strict=True)
    return [SimulatedRequest(float(arrival), int(p), int(o)) for arrival, p, o in rows]


def poisson(rate: float, number: int, generator: "Generator") -> "np.ndarray":
    """Arrival times, (number,), of independent requests: `rate` per second on average."""
    return gamma(rate, number, 1.0, generator)


def gamma(rate: float, number: int, variation: float, generator: "Generator") -> "np.ndarray":
    """Arrival times, (number,), with Gamma gaps: mean 1 / rate, deviation variation / rate."""
    import numpy as np

    _positive(rate=rate, variation=variation)
    shape = 1 / variation**2
    return np.cumsum(generator.gamma(shape, 1 / (rate * shape), number))


def on_off(rate: float, number: int, on: float, off: float, generator: "Generator") -> "np.ndarray":
    """Arrival times, (number,): Poisson for `on` seconds, then none for `off` seconds, repeated."""
    import numpy as np

    _positive(rate=rate, on=on)
    require_between(off, "off", 0, math.inf, closed=True)
    busy = poisson(rate * (on + off) / on, number, generator)  # on a clock that stops while off
    return busy + off * np.floor(busy / on)


def lognormal(
    mean: float, sigma: float, number: int, generator: "Generator", *, most: int
) -> "np.ndarray":
    """Lengths in 1 … most, (number,), whose logarithm is normal with deviation sigma."""
    import numpy as np

    _positive(mean=mean, sigma=sigma, most=most)
    drawn = generator.lognormal(math.log(mean) - sigma**2 / 2, sigma, number)
    return np.clip(np.rint(drawn), 1, most).astype(int)


def zipf(exponent: float, number: int, generator: "Generator", *, most: int) -> "np.ndarray":
    """Lengths in 1 … most, (number,), of which n has a probability proportional to n^−exponent."""
    import numpy as np

    _positive(exponent=exponent, most=most)
    lengths = np.arange(1, most + 1)
    weights = lengths ** -float(exponent)
    return generator.choice(lengths, number, p=weights / weights.sum())


def bimodal(
    short: int, long: int, share: float, number: int, generator: "Generator"
) -> "np.ndarray":
    """Lengths, (number,): `long` with probability `share`, otherwise `short`."""
    import numpy as np

    _positive(short=short, long=long)
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}: give the share of long ones, in [0, 1]")
    return np.where(generator.random(number) < share, long, short)


def _positive(**values: float) -> None:
    for name, value in values.items():
        require_between(value, name, 0, math.inf)
