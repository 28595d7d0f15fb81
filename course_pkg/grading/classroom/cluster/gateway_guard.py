"""How the command guards itself against its gateway, which a worker may have taken over.

`Notes` bounds and escapes what a cluster prints on the instructor's terminal. `Liveness` finds out
whether a run still gets anywhere.

Chapter: appendix/threat-model.
"""

import time
import zlib
from collections import Counter
from collections.abc import Callable

from course_pkg.grading.questions.display import one_line

LENGTH = 500  # characters of a note
MOST = 100  # notes in a run
PER_MACHINE = 10  # notes about one machine in a run
AT_ONCE = 20  # notes without a pause
EVERY_S = 5.0  # after them, one note each time these seconds have passed


def machine_of(address: str) -> int:
    """A number for the machine of a worker, the same for all its workers; never 0.

    >>> machine_of("tls://10.0.0.7:40001") == machine_of("tls://10.0.0.7:40002")
    True
    """
    return zlib.crc32(address.rpartition(":")[0].encode(errors="replace")) or 1


class Notes:
    """Passes notes on to `show`, without control characters; counts those above the limits.

    >>> notes = Notes(print)
    >>> notes.take(7, "worker a is refused:\\x1b[2J it is too old")
    worker a is refused:�[2J it is too old
    """

    def __init__(
        self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show
        self._clock = clock
        self._shown: Counter[int] = Counter()  # by machine
        self._room = float(AT_ONCE)
        self._filled = clock()
        self.left_out = 0

    def take(self, machine: int, text: str) -> None:
        """Show a note about a machine, or count it as left out. machine: see `machine_of`."""
        now = self._clock()
        self._room = min(AT_ONCE, self._room + (now - self._filled) / EVERY_S)
        self._filled = now
        too_many = self._shown.total() >= MOST or self._shown[machine] >= PER_MACHINE
        if too_many or self._room < 1:
            self.left_out += 1
            return
        self._room -= 1
        self._shown[machine] += 1
        self._show(one_line(text, LENGTH))

    def close(self) -> None:
        """Say how many notes were left out, if any were."""
        if self.left_out:
            self._show(
                f"{self.left_out:,} more notes about the cluster were left out: at most {MOST} are "
                f"shown in a run, {PER_MACHINE} about one machine, {AT_ONCE} at once"
            )


class Liveness:
    """Two clocks that a note does not reset.

    silent_s: seconds without a sign that the gateway runs. stuck_s: seconds in which no submission
    ends, so that the gateway runs and delivers nothing.
    """

    def __init__(
        self, silent_s: float, stuck_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._silent_s = silent_s
        self._stuck_s = stuck_s
        self._clock = clock
        self._heard = self._ended = clock()

    def heard(self) -> None:
        """The gateway said that it runs."""
        self._heard = self._clock()

    def ended(self) -> None:
        """A submission has ended, or the first one has been sent."""
        self._ended = self._heard = self._clock()

    def seconds_left(self, waiting: bool) -> float:
        """Until the run is lost. waiting: whether any submission has no result yet."""
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
