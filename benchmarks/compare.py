"""Fair comparisons on a shared machine: the same inputs, alternating in one process."""

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from course_pkg.common.triton_runtime import INSTALLED, INTERPRETED


@dataclass(frozen=True)
class Comparison:
    """One quantity, ours and theirs; the ratio must not exceed the limit.

    spread: between these two values lie the middle half of the pairs' ratios; None if not in pairs.
    """

    what: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    limit: float
    spread: tuple[float, float] | None = None

    @property
    def holds(self) -> bool:
        """Whether the ratio is within the limit."""
        return self.ratio <= self.limit


@dataclass(frozen=True)
class NotMeasured:
    """A comparison that this machine can't make; it is reported, and misses no limit."""

    what: str
    reason: str
    holds: None = None


def kernels_lack() -> str | None:
    """What Triton's kernels lack to be compiled and measured here; None if they lack nothing."""
    if not torch.cuda.is_available():
        return "needs a GPU"
    if not INSTALLED:
        return "needs triton"
    return "triton is set to interpret (TRITON_INTERPRET)" if INTERPRETED else None


def compare_times(
    what: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    seconds: float,
    limit: float,
    warmup: int = 1,
) -> Comparison:
    """Time two calls alternately for about `seconds` seconds.

    The ratio is the median over pairs of ours / theirs: a slowdown of the machine that lasts
    longer than a pair affects both. The reported times are medians in milliseconds: wall time on a
    GPU; on a CPU, CPU time of the only thread that __main__ allows, which other programs disturb
    least.
    """
    for _ in range(warmup):
        _timed(ours)
        _timed(theirs)
    pairs = []
    end = time.perf_counter() + seconds
    gc.collect()
    gc.disable()
    try:
        while time.perf_counter() < end or len(pairs) < 8:
            if len(pairs) % 2:
                second, first = _timed(theirs), _timed(ours)
            else:
                first, second = _timed(ours), _timed(theirs)
            pairs.append((first, second))
    finally:
        gc.enable()
    ours_ms, theirs_ms = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    low, ratio, high = statistics.quantiles(first / second for first, second in pairs)
    what = f"{what}, median of {len(pairs)} pairs"
    return Comparison(what, "ms", ours_ms, theirs_ms, ratio, limit, (low, high))


def compare_memory(
    what: str, ours: Callable[[], object], theirs: Callable[[], object], *, limit: float
) -> Comparison:
    """The peak of the tensor memory that each call adds, in MiB.

    On a GPU, torch's allocator counts it; on a CPU, torch's profiler records every allocation.
    Unlike a process's resident size, both are exact and repeatable.
    """
    ours_mib, theirs_mib = (_peak_bytes(call) / 2**20 for call in (ours, theirs))
    return Comparison(what, "MiB", ours_mib, theirs_mib, ours_mib / theirs_mib, limit)


def _timed(call: Callable[[], object]) -> float:
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    started = clock()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - started


def _peak_bytes(call: Callable[[], object]) -> int:
    call()  # state that is created once, such as the optimizer's, is not part of a step
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["args"]["Ev Idx"])
    current = peak = 0
    for change in changes:
        current += change["args"]["Bytes"]
        peak = max(peak, current)
    return peak
