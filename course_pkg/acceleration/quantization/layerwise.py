"""Quantize a decoder block by block, with statistics of what each linear layer reads.

A block's layers are quantized with the statistics of their inputs; then the quantized block makes
the inputs of the next one, so that later blocks can compensate for earlier errors. The embedding
and the output head are left as they are. Models are LlamaForCausalLM and `course_pkg.lm.decoder`.

Source: Frantar et al. 2023 (GPTQ), section 4, "Setup".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from course_pkg.acceleration.quantization.grouped import Grid, round_to_nearest
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear, QuantizedWeight
from course_pkg.lm.decoder import Decoder

READERS = (  # the linear layers of a block; those in one line read the same input
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


class InputStatistics:
    """What the methods need to know of a layer's inputs x, over all calibration tokens.

    `hessian` is 2 · mean of x xᵀ; `mean_abs` and `absmax` are of each channel.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.hessian = self.mean_abs = self.absmax = torch.tensor(0.0)

    def add(self, x: Tensor) -> None:
        """Count further inputs, (..., size)."""
        x = x.detach().flatten(0, -2)
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # (tokens, size)
        if not torch.isfinite(x).all():
            raise ValueError("the calibration inputs have NaN or infinite numbers: check the model")
        self.tokens += len(x)
        new = len(x) / self.tokens  # the share of these tokens in the means
        magnitude = x.abs()
        self.hessian = (1 - new) * self.hessian + new * 2 / len(x) * (x.T @ x)
        self.mean_abs = (1 - new) * self.mean_abs + new * magnitude.mean(0)
        self.absmax = torch.maximum(self.absmax.to(x), magnitude.amax(0))


Statistics = Mapping[str, InputStatistics]  # by the layer's name


class Method(Protocol):
    """How the layers of a block are quantized; a `calibrated` method needs statistics."""

    calibrated: bool

    def quantize_block(
        self, block: nn.Module, statistics: Statistics
    ) -> dict[str, QuantizedWeight]:
        """The new weights of the layers in READERS, by name.

        It may rescale what is in the block if the block's function stays the same.
        """


@dataclass(frozen=True)
class EachWeight:
    """Each weight of a block by itself, as a function such as `int8.int8_weight` says."""

    make: Callable[[Tensor], QuantizedWeight]
    calibrated = False

    def quantize_block(
        self, block: nn.Module, statistics: Statistics
    ) -> dict[str, QuantizedWeight]:
        return {
            name: self.make(block.get_submodule(name).weight) for names in READERS for name in names
        }


@dataclass(frozen=True)
class RoundToNearest:
    """Rounding each weight of a block by itself; no calibration is needed."""

    grid: Grid
    calibrated = False

    def quantize_block(
        self, block: nn.Module, statistics: Statistics
    ) -> dict[str, QuantizedWeight]:
        """The new weights of the layers in READERS, by name."""
        method = EachWeight(partial(round_to_nearest, grid=self.grid))
        return method.quantize_block(block, statistics)


@torch.no_grad()
def calibrate(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, InputStatistics]:
    """Statistics of the inputs of each linear layer in the blocks, by the layer's full name.

    Batches are token ids, each (batch, tokens), without padding.
    """
    prefix = "model.layers" if isinstance(model, LlamaForCausalLM) else "layers"
    by_layer: dict[str, InputStatistics] = {}
    streams = _first_inputs(model, batches)
    for index, block in enumerate(_blocks(model)):
        statistics = _run(block, streams)
        by_layer |= {f"{prefix}.{index}.{name}": value for name, value in statistics.items()}
    return by_layer


@torch.no_grad()
def quantize_layers(
    model: nn.Module,
    method: Method,
    batches: Iterable[Tensor] = (),
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Quantize the linear layers in the model's blocks, in place; they become QuantizedLinear.

    Args:
        model: a LlamaForCausalLM or a Decoder.
        method: such as `GPTQ(Grid(4, 64))`.
        batches: token ids, each (batch, tokens), without padding, for a calibrated method.
        progress: called after each block with the number of blocks that are done and of all.
    """
    blocks = _blocks(model)
    for block in blocks:
        _require_unquantized(block)
    streams = _first_inputs(model, batches) if method.calibrated else []
    for index, block in enumerate(blocks):
        statistics = _run(block, streams, replace=False)
        for name, weight in method.quantize_block(block, statistics).items():
            layer = block.get_submodule(name)
            block.set_submodule(name, QuantizedLinear(weight, layer.bias).train(layer.training))
        _run(block, streams, collect=False)
        if progress is not None:
            progress(index + 1, len(blocks))


@dataclass
class _Stream:
    """One batch on its way through the blocks: the hidden states, and a block's other inputs."""

    hidden: Tensor
    others: tuple
    named: dict[str, Any]


class _ReachedBlocks(Exception):
    """The model has called its first block: the rest of its pass is not needed."""


def _blocks(model: nn.Module) -> nn.ModuleList:
    if isinstance(model, LlamaForCausalLM):
        return model.model.layers
    if isinstance(model, Decoder):
        return model.layers
    raise TypeError(
        f"expected a LlamaForCausalLM or a course_pkg Decoder, got {type(model).__name__}"
    )


def _first_inputs(model: nn.Module, batches: Iterable[Tensor]) -> list[_Stream]:
    """What the first block gets for each batch."""
    streams: list[_Stream] = []

    def stop(block: nn.Module, args: tuple, named: dict[str, Any]) -> None:
        streams.append(_Stream(args[0], args[1:], named))
        raise _ReachedBlocks

    options = {"use_cache": False} if isinstance(model, LlamaForCausalLM) else {}
    handle = _blocks(model)[0].register_forward_pre_hook(stop, with_kwargs=True)
    with _evaluating(model):
        try:
            for ids in batches:
                with suppress(_ReachedBlocks):
                    model(_require_ids(ids), **options)
        finally:
            handle.remove()
    if not streams:
        raise ValueError("no batches: calibration needs at least one, of token ids")
    return streams


def _run(
    block: nn.Module, streams: list[_Stream], collect: bool = True, replace: bool = True
) -> dict[str, InputStatistics]:
    """Run all batches through a block; return statistics of its layers' inputs.

    With `replace`, its outputs take the inputs' place.
    """
    statistics = {names: InputStatistics() for names in READERS if collect and streams}
    handles = [
        block.get_submodule(names[0]).register_forward_pre_hook(
            lambda layer, args, collected=collected: collected.add(args[0])
        )
        for names, collected in statistics.items()
    ]
    with _evaluating(block):
        try:
            for stream in streams:
                output = block(stream.hidden, *stream.others, **stream.named)
                if replace:
                    stream.hidden = output
        finally:
            for handle in handles:
                handle.remove()
    return {name: collected for names, collected in statistics.items() for name in names}


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout, and then each part in the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _require_unquantized(block: nn.Module) -> None:
    for names in READERS:
        for name in names:
            layer = block.get_submodule(name)
            if type(layer) is not nn.Linear:
                raise ValueError(
                    f"{name} is a {type(layer).__name__}, not a plain Linear: quantize the model "
                    "before anything else is done to it"
                )


def _require_ids(ids: Any) -> Tensor:
    valid = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.dim() == 2
    if not valid or not ids.numel():
        description = f"{tuple(ids.shape)} of {ids.dtype}" if isinstance(ids, Tensor) else type(ids)
        raise ValueError(f"a batch must be token ids, (batch, tokens), got {description}")
    return ids
