"""Fair comparisons: the same inputs in one process, in turns, on a machine that others use too."""

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Comparison:
    """One quantity, ours and theirs; the ratio must not exceed the limit."""

    what: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the ratio is within the limit."""
        return self.ratio <= self.limit


def compare_times(
    what: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    seconds: float,
    limit: float,
    warmup: int = 1,
) -> Comparison:
    """Time two calls in turns for about so many seconds; the order alternates.

    The ratio is the median over pairs of ours / theirs: what slows the machine for longer than a
    pair slows both. The times reported are medians, in milliseconds: wall time on a GPU, and on
    a CPU the computing time of the one thread that __main__ allows, which other programs
    disturb least.
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
    mine, yours = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(first / second for first, second in pairs)
    return Comparison(f"{what}, median of {len(pairs)} pairs", "ms", mine, yours, ratio, limit)


def compare_memory(
    what: str, ours: Callable[[], object], theirs: Callable[[], object], *, limit: float
) -> Comparison:
    """The most tensor memory, in MiB, that each call holds above what was there before it.

    On a GPU torch's allocator counts it; on a CPU torch's profiler sees every allocation. Unlike
    a process's resident size, both are exact and repeat.
    """
    mine, yours = (_peak_bytes(call) / 2**20 for call in (ours, theirs))
    return Comparison(what, "MiB", mine, yours, mine / yours, limit)


def _timed(call: Callable[[], object]) -> float:
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    started = clock()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - started


def _peak_bytes(call: Callable[[], object]) -> int:
    call()  # lazily made state (of the optimizer, say) is not part of a step
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
    now = peak = 0
    for change in changes:
        now += change["args"]["Bytes"]
        peak = max(peak, now)
    return peak
