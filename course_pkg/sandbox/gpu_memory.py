"""Watch how much memory of a GPU a sandbox uses, and whether it is released afterwards.

CUDA has no limit on the memory of a process that the process could not lift. So a thread asks
`nvidia-smi` again and again, and calls back above the limit: what is faster than a few looks can
exceed it. Only the memory of the whole GPU is measured, since process ids of a container or a
sandbox are unknown to the driver's tools; nothing else should run on that GPU.

Chapter: appendix/gpu.
"""

import threading
import time
from collections.abc import Callable

from course_pkg.sandbox.gpus import MIB, Gpu, used_bytes

PAUSE_S = 0.5  # between two looks
SLACK_BYTES = 64 * MIB  # what the driver itself may keep for later
RELEASE_WITHIN_S = 10.0  # the driver frees memory a moment after a process has ended


class GpuMemory:
    """Watches one GPU while one program uses it. A context manager, which stops the watching.

    limit_bytes: None for no limit. exceeded: called once, in another thread, above the limit. used:
    gives the memory in use, None if unknown. peak_bytes: the most in use beyond what was in use
    before; None if never measured. too_much: whether the limit was exceeded.
    """

    def __init__(
        self,
        gpu: Gpu,
        limit_bytes: int | None,
        exceeded: Callable[[], None],
        used: Callable[[Gpu], int | None] = used_bytes,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.gpu = gpu
        self._limit = limit_bytes
        self._exceeded = exceeded
        self._used = used
        self._pause_s = pause_s
        self._before = used(gpu)
        self._unknown = False
        self.peak_bytes: int | None = None
        self.too_much = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def measured(self) -> bool:
        """Whether the memory in use was known before, and every time since."""
        return self._before is not None and not self._unknown

    def __enter__(self) -> "GpuMemory":
        if self._before is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop watching. May be called again."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def kept_bytes(self, within_s: float = RELEASE_WITHIN_S) -> int:
        """What is still in use, after the program was killed, beyond what was in use before.

        0 as soon as it is released, or if it can't be measured. Waits at most `within_s` seconds.
        """
        until = time.monotonic() + within_s
        while (more := self._more()) is not None and more > SLACK_BYTES:
            if time.monotonic() >= until:
                return more
            time.sleep(self._pause_s)
        return 0

    def _watch(self) -> None:
        while not self._stopped.wait(self._pause_s):
            more = self._more()
            if more is None:
                continue
            self.peak_bytes = max(more, self.peak_bytes or 0)
            if self._limit is not None and more > self._limit and not self.too_much:
                self.too_much = True
                self._exceeded()

    def _more(self) -> int | None:
        if self._before is None:
            return None
        now = self._used(self.gpu)
        self._unknown |= now is None
        return None if now is None else max(0, now - self._before)
