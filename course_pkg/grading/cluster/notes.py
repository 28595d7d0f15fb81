"""What a cluster may print on the instructor's terminal: a bounded number of short lines.

The notes come from the gateway, which reads what workers send and may be taken over by one. So the
command counts them itself, and escapes what could control a terminal. Imports no Dask.

Chapter: appendix/threat-model.
"""

import time
import zlib
from collections import Counter
from collections.abc import Callable

from ..contract.display import one_line

LENGTH = 500  # characters of a note
MOST = 100  # notes in a run
PER_MACHINE = 10  # notes about one machine in a run
AT_ONCE = 20  # notes without a pause
EVERY_S = 5.0  # after them, one note in so many seconds


def machine_of(address: str) -> int:
    """A number for the machine of a worker, the same for all its workers; never 0.

    >>> machine_of("tls://10.0.0.7:40001") == machine_of("tls://10.0.0.7:40002")
    True
    """
    return zlib.crc32(address.rpartition(":")[0].encode(errors="replace")) or 1


class Notes:
    """Passes notes on to `show`, within the limits, and counts the others.

    show: gets a note as one line, without control characters. clock: seconds.

    >>> notes = Notes(print)
    >>> notes.take(7, "worker a is refused:\\x1b[2J it is too old")
    worker a is refused:�[2J it is too old
    """

    def __init__(
        self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show, self._clock = show, clock
        self._shown: Counter[int] = Counter()  # by machine
        self._room, self._filled = float(AT_ONCE), clock()
        self.left_out = 0

    def take(self, machine: int, text: str) -> None:
        """Show a note about a machine, or count it as left out. machine: its number."""
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
