"""Answers of a model on the workers of a Dask cluster, in the batches of a run on this machine.

Each worker loads the model once, and compares its weights with those here: a run may begin on one
machine and continue on a cluster. Dask's messages hold pickles, and reading one can run code, so
use only workers that you trust as this machine; grading, which can't, has another client.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg import __version__
from course_pkg.common.http_client import ServerError
from course_pkg.evaluation.continuation_scores import Progress, silent
from course_pkg.evaluation.local_model import BATCH, LocalModel, load_model
from course_pkg.evaluation.run_errors import RunError
from course_pkg.evaluation.samples import Answer, ItemRequest
from course_pkg.evaluation.task import Task
from course_pkg.lm.model_errors import ModelError

if TYPE_CHECKING:
    from distributed import Client, Future
    from distributed.security import Security

WAIT_S = 60  # for the scheduler, and for a first worker
Answered = list[tuple[ItemRequest, Answer | Exception]]


@dataclass(frozen=True)
class Loading:
    """How each worker loads the model: the arguments of `load_model`."""

    name: str
    adapter: str | None = None
    device: str | None = None
    dtype: str = "float32"


class ClusterModel:
    """A model on a cluster. local: the same model here, for its tokenizer and its identity."""

    def __init__(
        self,
        local: LocalModel,
        loading: Loading,
        address: str,
        security: "Security | None" = None,
        wait_s: float = WAIT_S,
    ) -> None:
        self.tokenizer: Tokenizer = local.tokenizer
        self.identity = local.identity
        self._loading = loading
        self._address = address
        self._security = security
        self._wait_s = wait_s

    def answers(
        self, task: Task, requests: Sequence[ItemRequest], progress: Progress = silent
    ) -> Iterator[Answered]:
        """Batch by batch; RunError if a worker can't run this, ServerError without a cluster."""
        if not requests:
            return
        from distributed import as_completed

        asked = replace(task, items=(), examples=())  # what is sent with each batch
        with self._connect() as client:
            batches: dict[Future, Sequence[ItemRequest]] = {}
            for start in range(0, len(requests), BATCH):
                batch = requests[start : start + BATCH]
                expected = (__version__, self.identity["weights"])
                future = client.submit(
                    answer_batch, self._loading, expected, asked, batch, pure=False
                )
                batches[future] = batch
            for future in as_completed(list(batches), loop=client.loop):
                yield self._result(future, batches.pop(future))

    def _result(self, future: "Future", batch: Sequence[ItemRequest]) -> Answered:
        if future.status == "finished":
            return list(zip(batch, future.result(), strict=True))
        if future.status != "error":  # canceled
            raise ServerError(
                f"the scheduler {self._address} is lost: see its log, and run the same command "
                "again"
            )
        error = future.exception()
        if isinstance(error, RunError):
            raise error
        if isinstance(error, ImportError):
            raise RunError(
                f"a worker can't import what it needs ({error}): install the same version of the "
                "course on all workers"
            )
        return [(request, error) for request in batch]  # such as workers that were killed

    def _connect(self) -> "Client":
        from distributed import Client

        options = {"set_as_default": False, "timeout": self._wait_s}
        try:
            client = Client(self._address, security=self._security, **options)
        except (OSError, ValueError) as error:
            raise ServerError(
                f"no scheduler answers at {self._address} ({type(error).__name__}: {error})"
            ) from None
        try:
            client.wait_for_workers(1, timeout=self._wait_s)
        except TimeoutError:
            client.close()
            raise ServerError(
                f"the scheduler {self._address} has had no worker for {self._wait_s:g} s: start "
                "one, and run the same command again"
            ) from None
        return client


# On a worker.

_LOADED: dict[tuple[Loading, str], LocalModel] = {}  # by loading and weights; the last run's
_ONE_AT_A_TIME = threading.Lock()


def answer_batch(
    loading: Loading, expected: tuple[str, str], task: Task, batch: Sequence[ItemRequest]
) -> list[Answer | Exception]:
    """The answers or errors of a batch. expected: version and weights; RunError for others."""
    with _ONE_AT_A_TIME:
        model = _load(loading, expected)
    by_item: dict[str, Any] = {}
    for answers in model.answers(task, batch):
        by_item |= {request.item.id: answer for request, answer in answers}
    return [by_item[request.item.id] for request in batch]


def _load(loading: Loading, expected: tuple[str, str]) -> LocalModel:
    version, weights = expected
    if version != __version__:
        raise RunError(f"a worker has version {__version__} of the course, this machine {version}")
    key = (loading, weights)  # a folder may have other weights in the next run
    if key not in _LOADED:
        _LOADED.clear()
        try:
            model = load_model(
                loading.name, loading.adapter, device=loading.device, dtype=loading.dtype
            )
        except ModelError as error:
            raise RunError(f"a worker can't load the model: {error}") from None
        if (own_weights := model.identity["weights"]) != weights:
            raise RunError(
                f"a worker has other weights for {loading.name} ({own_weights}, here {weights}): "
                "give all machines the same files"
            )
        _LOADED[key] = model
    return _LOADED[key]
