"""Runs the cells of a notebook, for `course check` and in the grader's sandbox alike.

It is nbclient with four rules. Output over the limit is dropped with a note; a cell that floods is
interrupted, and has put out too much however fast the machine is; a cell's time does not include
waiting for processors; and it says which cell ended its own kernel, as `quit()` does.
"""

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_output

from course_pkg.common.files import readable_size
from course_pkg.grading.questions.time_limits import FairClock

FLOOD = 32  # times the limit, from one cell: then it is interrupted
HEADER = 500  # bytes of a message beside its content: prints that are flushed are many messages
SMALL = 64_000  # bytes of a last result, or of an error: shown also beyond the limit
DROPPED = "\n[… the rest is not shown: the cells put out more than {}]\n"


class CellClient(NotebookClient):
    """A client with the rules of this module.

    Args:
        output_bytes: of all cells together that are kept.

    Attributes:
        over: whether some output was dropped.
        flooded: whether the last cell was interrupted after it had put out more than all cells may.
        ended: whether the last cell has ended the kernel by its own wish.
        when_too_much: called when the running cell has put out more than all cells may.
    """

    when_too_much: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, nb: NotebookNode, output_bytes: int, **options: Any) -> None:
        super().__init__(nb, **options)
        self.on_cell_execute = self._cell_starts
        self.on_cell_executed = self._cell_has_run
        self.over = self.flooded = self.ended = False
        self._output_bytes = self._left = output_bytes
        self._sent = 0  # bytes by the running cell
        self._noted = False
        self._clock = FairClock()

    def output(self, outs: Any, msg: Any, display_id: Any, cell_index: int) -> Any:
        size = len(json.dumps(msg["content"], default=str))
        before, self._sent = self._sent, self._sent + size + HEADER
        if before <= self._output_bytes < self._sent:
            self.when_too_much()
        if self._sent > FLOOD * self._output_bytes:
            self._sent = 0
            self.flooded = True
            stop = self.km.provisioner.send_signal(signal.SIGINT)
            self._stopping = asyncio.ensure_future(stop)
        kind = msg["msg_type"]
        if size <= self._left or (size <= SMALL and kind in ("execute_result", "error")):
            self._left -= size
            return super().output(outs, msg, display_id, cell_index)
        self.over = True
        if not self._noted:
            self._noted = True
            text = str(msg["content"].get("text", "")) if kind == "stream" else ""
            text = text[: max(self._left, 0) // 6]  # JSON writes a character with six at most
            text += DROPPED.format(readable_size(self._output_bytes))
            outs.append(new_output("stream", name="stdout", text=text))
            self._left = 0
        return None

    def _cell_starts(self, **_: Any) -> None:
        self.flooded = self.ended = self._noted = False
        self._sent = 0
        self._clock = FairClock(str(self.km.provisioner.pid))

    def _cell_has_run(self, execute_reply: Any, **_: Any) -> None:
        content = execute_reply.get("content") if isinstance(execute_reply, dict) else None
        payload = content.get("payload") if isinstance(content, dict) else None
        for part in payload if isinstance(payload, list) else ():
            if isinstance(part, dict) and part.get("source") == "ask_exit":
                self.ended = not part.get("keepkernel")

    async def _async_handle_timeout(self, timeout: int, cell: Any = None) -> Any:
        """Give a cell more time if it has waited for processors; it is asked again then."""
        if self._clock.seconds() < timeout:
            return None
        self.flooded = self.flooded or self._sent > self._output_bytes
        return await super()._async_handle_timeout(timeout, cell)
