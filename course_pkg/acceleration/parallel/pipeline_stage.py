"""A stage of a pipeline: some layers of a decoder, and the passes that a schedule asks for.

Autograd ends where a stage begins: its backward pass begins with the gradient of what it sent, and
ends with that of what it got. Between its passes it keeps the graph of each microbatch.

A zero-bubble schedule halves the backward pass. The first half computes gradients for the input,
and for the output of each `nn.Linear`; the second multiplies each of those with the layer's input,
gᵀx, for the gradient of its weight. Other weights get their gradients in the first half.
Source: zero bubble (Qi et al. 2023).
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.common.arguments import require_integer
from course_pkg.lm.decoder import causal_attend
from course_pkg.lm.rope import rotation


class DecoderStage(nn.Module):
    """Consecutive layers of a decoder; the first stage embeds, the last one has norm and head.

    It shares the decoder's modules and keeps their names, so that the stages' state dicts together
    are the decoder's. If the head is tied, the last stage has the embedding too, for its weight.
    """

    def __init__(self, decoder: nn.Module, layers: range):
        super().__init__()
        self.config = decoder.config
        self.first = layers.start == 0
        self.last = layers.stop == len(decoder.layers)
        head = getattr(decoder, "lm_head", None)
        tied = head is None or head.weight is decoder.embed_tokens.weight
        self.layers = nn.ModuleDict({str(index): decoder.layers[index] for index in layers})
        if self.first or (self.last and tied):
            self.embed_tokens = decoder.embed_tokens
        if self.last:
            self.norm = decoder.norm
        if self.last and head is not None:  # after the embedding, which names a tied weight
            self.lm_head = head

    def forward(self, x: Tensor) -> Tensor:
        """x: ids (rows, tokens) at first, then (rows, tokens, hidden); at last (…, vocab)."""
        if self.first:
            x = self.embed_tokens(x)  # (rows, tokens, hidden)
        positions = torch.arange(x.shape[1], device=x.device)  # (tokens,)
        cos, sin = rotation(self.config, positions, x.dtype)
        attend = causal_attend(self.config)
        for layer in self.layers.values():
            x = layer(x, cos, sin, attend)
        if not self.last:
            return x
        x = self.norm(x)
        if hasattr(self, "lm_head"):
            return self.lm_head(x)
        return F.linear(x, self.embed_tokens.weight)  # tied

    def activation(self, ids: Tensor) -> Tensor:
        """An empty tensor as a stage sends it: (rows, tokens, hidden) for ids (rows, tokens)."""
        weight = next(self.parameters())
        return weight.new_empty(*ids.shape, self.config.hidden_size)


def split_decoder(decoder: nn.Module, stages: int) -> list[DecoderStage]:
    """The stages of a decoder, with its own modules; the first ones have a layer more if needed."""
    require_integer(stages, "stages")
    count = len(decoder.layers)
    if stages > count:
        raise ValueError(
            f"{count} layers can't be split into {stages} stages: use at most {count} (ranks times "
            "chunks per rank)"
        )
    least, more = divmod(count, stages)
    parts = []
    start = 0
    for stage in range(stages):
        stop = start + least + (1 if stage < more else 0)
        parts.append(DecoderStage(decoder, range(start, stop)))
        start = stop
    return parts


@dataclass
class _Kept:
    """Of one microbatch; linears: layer, input and output, after the first half its gradient."""

    x: Tensor
    y: Tensor
    bytes: int
    linears: list[tuple[nn.Linear, Tensor, Tensor]] = field(default_factory=list)


class Stage:
    """A module as a schedule runs it, F, and B, or if `split` its halves I and W."""

    def __init__(self, module: nn.Module, split: bool = False):
        self.module = module
        self.split = split
        self._kept: dict[int, _Kept] = {}

    @property
    def in_flight(self) -> int:
        """The number of microbatches whose activations are kept."""
        return len(self._kept)

    @property
    def in_flight_bytes(self) -> int:
        """The bytes that autograd has saved for them in floating point, without parameters."""
        return sum(kept.bytes for kept in self._kept.values())

    def forward(
        self, microbatch: int, x: Tensor, then: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """F: the output, detached, or of `then(output)`: the last stage's loss."""
        if x.is_floating_point():
            x = x.detach().requires_grad_()
        saved: dict[int, int] = {}
        with _saved_bytes(saved), _linear_calls(self.module, self.split) as linears:
            y = self.module(x)
            y = then(y) if then else y
        own = {p.untyped_storage().data_ptr() for p in self.module.parameters()}
        size = sum(count for where, count in saved.items() if where not in own)
        self._kept[microbatch] = _Kept(x, y, size, linears)
        return y.detach()

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """B: add to the gradients of the weights; return that of the input (None for ids).

        The gradient is that of the output; None in the last stage, whose output is the loss.
        """
        kept = self._kept.pop(microbatch)
        if gradient is not None and _is_frozen(kept):
            return None
        torch.autograd.backward(kept.y, gradient)
        return kept.x.grad

    def backward_input(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """I: as `backward`, but the weights of linear layers wait for `backward_weight`."""
        kept = self._kept[microbatch]
        if gradient is not None and _is_frozen(kept):
            return None
        later = {id(p) for layer, _, _ in kept.linears for p in layer.parameters()}
        now = [p for p in self.module.parameters() if p.requires_grad and id(p) not in later]
        x = [kept.x] if kept.x.requires_grad else []
        outputs = [y for _, _, y in kept.linears]
        wanted = x + now + outputs
        gradients = torch.autograd.grad(kept.y, wanted, gradient, materialize_grads=True)
        for parameter, its_gradient in zip(now, gradients[len(x) :], strict=False):
            _add(parameter, its_gradient)
        ends = gradients[len(x) + len(now) :]
        kept.linears = [
            (layer, inputs, end) for (layer, inputs, _), end in zip(kept.linears, ends, strict=True)
        ]
        kept.bytes = sum(inputs.nbytes + end.nbytes for _, inputs, end in kept.linears)
        kept.y = kept.y.detach()  # the graph is no longer needed
        return gradients[0] if x else None

    def backward_weight(self, microbatch: int) -> None:
        """W: gᵀx for each linear layer, which needs no other rank."""
        for layer, x, gradient in self._kept.pop(microbatch).linears:
            gradient = gradient.flatten(0, -2)  # (tokens of all rows, out)
            _add(layer.weight, gradient.T @ x.flatten(0, -2))  # (out, in)
            if layer.bias is not None:
                _add(layer.bias, gradient.sum(0))


def _is_frozen(kept: _Kept) -> bool:
    """Whether neither weights nor input need a gradient, as in a frozen first stage."""
    return not kept.x.requires_grad and not kept.y.requires_grad


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


@contextlib.contextmanager
def _saved_bytes(saved: dict[int, int]) -> Iterator[None]:
    """Collect the bytes that autograd saves, by where they are, so that views count once."""

    def count(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        yield


@contextlib.contextmanager
def _linear_calls(module: nn.Module, wanted: bool) -> Iterator[list]:
    """Collect layer, input and output of each call of a trained `nn.Linear` with its own weight."""
    uses = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    calls: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def collect(layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> None:
        calls.append((layer, inputs[0].detach(), output))

    handles = []
    for layer in module.modules() if wanted else ():
        own = type(layer) is nn.Linear and uses[id(layer.weight)] == 1
        if own and layer.weight.requires_grad:
            handles.append(layer.register_forward_hook(collect))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
