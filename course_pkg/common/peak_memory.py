"""The memory that a computation needs, measured tensor by tensor."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Memory:
    """Bytes of the tensors that a call creates; the inputs, which exist before, don't count.

    peak: the largest sum of those alive at one time; kept: the sum of those alive at the end,
    including the result and what the backward pass needs; largest: the largest single tensor.
    """

    peak: int
    kept: int
    largest: int

    @property
    def extra(self) -> int:
        """What is needed only during the call: peak − kept."""
        return self.peak - self.kept


def measure_memory(call: Callable[[], object]) -> Memory:
    """Run `call` and return the memory of the tensors that torch's operations create in it.

    Exact and repeatable on every device: it counts the bytes of each new storage, from the
    operation that returns it until it is freed. What an operation uses inside and never returns is
    not seen.
    """
    recorder = _Recorder()
    with recorder:
        result = call()
        memory = Memory(recorder.peak, recorder.alive, recorder.largest)
    del result
    return memory


class _Recorder(TorchDispatchMode):
    """Sees every operation below autograd, so the backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = self.largest = 0
        self.known: dict[int, weakref.ref] = {}  # by address of the storage's data structure

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for storage in _storages((args, kwargs)):
            self._add(storage, 0)  # it existed before, or is known already
        result = func(*args, **kwargs or {})
        for storage in _storages(result):
            self._add(storage, storage.nbytes())
        self.peak = max(self.peak, self.alive)
        return result

    def _add(self, storage: torch.UntypedStorage, size: int) -> None:
        address = storage._cdata
        if address in self.known:
            return

        def freed(_: weakref.ref) -> None:
            del self.known[address]
            self.alive -= size

        self.known[address] = weakref.ref(storage, freed)
        self.alive += size
        self.largest = max(self.largest, size)


def _storages(tree: object) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
