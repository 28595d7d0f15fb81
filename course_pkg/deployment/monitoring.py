"""Monitoring: metrics in the text format of Prometheus, and a line of the log every few seconds.

Labels of metrics have few values, because each is a time series that is kept for ever.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily

from course_pkg.deployment.engine_thread import Call, EngineThread
from course_pkg.serving.engine import Engine
from course_pkg.serving.scheduler import Scheduler

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
REPORT_SECONDS = 10.0
log = logging.getLogger(__name__)


class Metrics:
    """Counters, times, and the engine's state when they are read. open_requests: asked then."""

    def __init__(self, engine: Engine, open_requests: Callable[[], int]):
        self.registry = CollectorRegistry()
        self.http = Counter(
            "course_http_requests", "Responses.", ["path", "status"], registry=self.registry
        )
        self.prompt_tokens = self._by_model(Counter, "prompt_tokens", "Tokens of prompts.")
        self.cached_tokens = self._by_model(
            Counter, "prompt_tokens_cached", "Those that came from the prefix cache."
        )
        self.new_tokens = self._by_model(Counter, "generation_tokens", "Generated tokens.")
        self.first_token = self._by_model(
            Histogram, "time_to_first_token_seconds", "From the request on.", buckets=SECONDS
        )
        self.per_token = self._by_model(
            Histogram, "time_per_output_token_seconds", "After the first.", buckets=TOKEN_SECONDS
        )
        self.duration = self._by_model(
            Histogram, "request_duration_seconds", "From the request to the end.", buckets=SECONDS
        )
        scheduler = engine.scheduler
        pool = scheduler.block_manager.pool
        self._gauge("requests_open", "Requests in the server.", open_requests)
        self._gauge("sequences_running", "In a step.", lambda: len(scheduler.running))
        self._gauge("sequences_waiting", "For a step.", lambda: len(scheduler.waiting))
        self.registry.register(_Preemptions(scheduler))
        self._gauge("kv_blocks", "Blocks of the KV cache.", lambda: len(pool.blocks))
        self._gauge("kv_blocks_free", "Those without a user.", lambda: pool.num_free)

    def finished(self, model: str, call: Call) -> None:
        """Count a call that is over, whether it ended well or not."""
        self.prompt_tokens.labels(model).inc(sum(map(len, call.prompts)))
        self.cached_tokens.labels(model).inc(sum(request.hit_tokens for request in call.requests))
        self.new_tokens.labels(model).inc(call.tokens)
        if not call.tokens:
            return
        self.first_token.labels(model).observe(call.first - call.started)
        self.duration.labels(model).observe(call.last - call.started)
        samples = len(call.prompts) * call.params.n
        if (later := call.tokens / samples - 1) > 0:  # the samples grow side by side
            self.per_token.labels(model).observe((call.last - call.first) / later)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _by_model(self, kind: type, name: str, about: str, **options):
        return kind(f"course_{name}", about, ["model"], registry=self.registry, **options)

    def _gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        Gauge(f"course_{name}", about, registry=self.registry).set_function(value)


class _Preemptions:
    """A counter that the scheduler has already counted; it is asked when the metrics are read."""

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler

    def collect(self) -> Iterator[CounterMetricFamily]:
        about = "Sequences that gave up their blocks."
        yield CounterMetricFamily("course_preemptions", about, value=self.scheduler.preemptions)


class Throughput:
    """Tokens per second of an engine's thread since the last line, and how full it is."""

    def __init__(self, thread: EngineThread):
        self.thread = thread
        self._before = time.monotonic()
        self._prompt_tokens = 0
        self._new_tokens = 0

    async def report(self) -> None:
        """Log a line every REPORT_SECONDS, if there was work, until it is canceled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if line := self.line(time.monotonic()):
                log.info(line)

    def line(self, now: float) -> str:
        """The rates since the last call; empty if nothing was computed and nothing waits.

        A prompt counts when its first new token comes.
        """
        passed = now - self._before
        prompt = self.thread.prompt_tokens - self._prompt_tokens
        new = self.thread.new_tokens - self._new_tokens
        self._before = now
        self._prompt_tokens += prompt
        self._new_tokens += new
        scheduler = self.thread.engine.scheduler
        running = len(scheduler.running)
        waiting = len(scheduler.waiting)
        if not (prompt or new or running or waiting):
            return ""
        pool = scheduler.block_manager.pool
        used = 1 - pool.num_free / len(pool.blocks)
        return (
            f"prompt {prompt / passed:.1f} tokens/s, generation {new / passed:.1f} tokens/s, "
            f"running {running}, waiting {waiting}, KV cache {used:.1%}"
        )
