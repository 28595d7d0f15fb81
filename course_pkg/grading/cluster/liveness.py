"""Whether a run on a cluster still gets anywhere: two clocks that a note does not reset.

One clock is reset by every sign that the gateway runs. It finds a gateway that hangs. The other is
reset only when a submission ends. It finds one that runs, says so, and delivers nothing.

Chapter: appendix/threat-model.
"""

import time
from collections.abc import Callable


class Liveness:
    """silent_s: seconds without a sign. stuck_s: seconds in which no submission ends."""

    def __init__(
        self, silent_s: float, stuck_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._silent_s, self._stuck_s, self._clock = silent_s, stuck_s, clock
        self._heard = self._ended = clock()

    def heard(self) -> None:
        """The gateway said that it runs."""
        self._heard = self._clock()

    def ended(self) -> None:
        """A submission has ended, or the first one has been sent."""
        self._ended = self._heard = self._clock()

    def seconds_left(self, waiting: bool) -> float:
        """Until the run is lost. waiting: whether any submission has no result yet.

        >>> Liveness(120, 3600, clock=lambda: 0.0).seconds_left(waiting=True)
        120.0
        """
        return self._first(waiting)[0] - self._clock()

    def why(self, waiting: bool) -> str:
        """Why the run is lost, once no seconds are left: the clock that ran out first.

        >>> Liveness(120, 3600).why(waiting=True)
        'the gateway to the cluster has said nothing for 120 s'
        """
        return self._first(waiting)[1]

    def _first(self, waiting: bool) -> tuple[float, str]:
        """When the first clock runs out, and what that means."""
        silent = f"the gateway to the cluster has said nothing for {self._silent_s:g} s"
        stuck = f"no submission has ended for {self._stuck_s / 3600:.1f} hours"
        clocks = [(self._heard + self._silent_s, silent)]
        if waiting:
            clocks.append((self._ended + self._stuck_s, stuck))
        return min(clocks)
