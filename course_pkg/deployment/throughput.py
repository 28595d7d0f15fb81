"""A line of the log every few seconds while there is work: tokens per second and how full it is.

Chapter: deployment/server.
"""

import asyncio
import logging
import time

from course_pkg.deployment.engine_thread import EngineThread

SECONDS = 10.0
log = logging.getLogger(__name__)


class Throughput:
    """What an engine's thread has done since the last line."""

    def __init__(self, thread: EngineThread):
        self.thread, self._before, self._tokens = thread, time.monotonic(), (0, 0)

    async def report(self, seconds: float = SECONDS) -> None:
        """Log a line every so many seconds, if there was work, until it is canceled."""
        while True:
            await asyncio.sleep(seconds)
            if line := self.line(time.monotonic()):
                log.info(line)

    def line(self, now: float) -> str:
        """The rates since the last call; empty if nothing was computed and nothing waits.

        A prompt counts when its first new token comes. now: of time.monotonic.
        """
        passed, self._before = now - self._before, now
        tokens = self.thread.prompt_tokens, self.thread.new_tokens
        prompt, new = (new - old for new, old in zip(tokens, self._tokens, strict=True))
        self._tokens = tokens
        scheduler = self.thread.engine.scheduler
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        if not (prompt or new or running or waiting):
            return ""
        pool = scheduler.blocks.pool
        used = 1 - pool.free / len(pool.blocks)
        return (
            f"prompt {prompt / passed:.1f} tokens/s, generation {new / passed:.1f} tokens/s, "
            f"running {running}, waiting {waiting}, KV cache {used:.1%}"
        )
