"""W4A16 on a GPU: our Triton kernel, torch's product in float16, and dequantizing before it.

Each time is that of one pass over COPIES weights, more than a GPU's cache holds, as in a model. The
passes are CUDA graphs, so that they do not wait for Python. The limits are goals: the kernel is to
be faster than float16 while reading the weight takes most of the time, and never slower than
dequantizing.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compare import Comparison, NotMeasured, compare_memory, compare_times, kernels_lack
from course_pkg.acceleration.quantization.grouped import Grid, GroupedWeight, round_to_nearest
from course_pkg.acceleration.quantization.w4a16_triton import w4a16_matmul

DEVICE = "cuda"
ROWS, COLUMNS, GROUP_SIZE = 14336, 4096, 128  # the widest layer of Llama 3 8B: 29 MB in 4 bits
COPIES = 8
LIMITS = {1: 1.0, 16: 1.0, 256: 2.25}  # tokens: time relative to float16
DEQUANTIZED, MEMORY = 1.0, 0.1  # time and memory, relative to dequantizing before the product
LARGEST_ERROR = 1e-3  # of the result's norm


def measure(seconds: float = 0.5) -> Iterator[Comparison | NotMeasured]:
    """Products with 1, 16 and 256 tokens: time, and memory. Without a GPU it says so."""
    what = "W4A16 in Triton and torch's product in float16"
    if reason := kernels_lack():
        yield NotMeasured(what, reason)
        return
    yield from _compare(seconds)


def _compare(seconds: float) -> Iterator[Comparison]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    options = {"generator": generator, "device": DEVICE, "dtype": torch.float16}
    weights = [torch.randn(ROWS, COLUMNS, **options) for _ in range(COPIES)]
    quantized = [round_to_nearest(weight, Grid(4, GROUP_SIZE)) for weight in weights]
    for tokens, limit in LIMITS.items():
        x = torch.randn(tokens, COLUMNS, **options)
        _require_equal(_fused(x, quantized[0]), _dequantized(x, quantized[0]))
        what = f"{tokens} × {COLUMNS} by {ROWS} × {COLUMNS}, groups of {GROUP_SIZE}, {COPIES} times"
        ours, theirs = _pass(_fused, x, quantized), _pass(_dequantized, x, quantized)
        dense = _graph(_pass(F.linear, x, weights))
        graph = _graph(ours)
        label = f"W4A16, {what}, and float16"
        yield compare_times(label, graph, dense, seconds=seconds, limit=limit)
        label = f"W4A16, {what}, and dequantizing first"
        yield compare_times(label, graph, _graph(theirs), seconds=seconds, limit=DEQUANTIZED)
        yield compare_memory(f"{label}: peak above weights", ours, theirs, limit=MEMORY)


def _fused(x: Tensor, weight: GroupedWeight) -> Tensor:
    return w4a16_matmul(x, weight.codes, weight.scale, weight.zero)


def _dequantized(x: Tensor, weight: GroupedWeight) -> Tensor:
    return F.linear(x, weight.dequantize(x.dtype))


def _pass(product: Callable, x: Tensor, weights: list) -> Callable[[], None]:
    def call() -> None:
        for weight in weights:
            product(x, weight)

    return call


def _graph(call: Callable[[], None]) -> Callable[[], None]:
    """The same kernels, recorded once and started together."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is compiled or allocated once must not be recorded
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _require_equal(ours: Tensor, theirs: Tensor) -> None:
    error = ((ours - theirs).double().norm() / theirs.double().norm()).item()
    if not error <= LARGEST_ERROR:
        raise RuntimeError(f"the results differ by {error:.1e}, so comparing times makes no sense")
