"""A frozen linear layer over a quantized weight, on which the adapters of any method work.

How the weight is stored and multiplied is the weight's own matter: each storage is a
`QuantizedWeight`. The layer keeps its tensors as `weight` (the codes) and buffers, so that they are
saved, moved and loaded with the model. The gradient goes to x only, through the dequantized weight.
"""

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class QuantizedWeight(ABC):
    """A quantized matrix, (out_features, in_features): a dataclass of what is stored."""

    codes: Tensor
    shape: torch.Size
    dtype: torch.dtype

    @abstractmethod
    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The numbers that the codes stand for, in dtype or the original's."""

    @abstractmethod
    def describe(self) -> str:
        """The format in words; two layers can exchange weights if they agree in it."""

    def matmul(self, x: Tensor) -> Tensor:
        """x Ŵᵀ, (..., out_features); a storage with a faster or another product overrides this."""
        return F.linear(x, self.dequantize(x.dtype))

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is stored, by field."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "QuantizedWeight":
        """The same weight with other tensors, which `tensors` returns then."""
        return replace(self, **tensors)

    @property
    def nbytes(self) -> int:
        """The bytes of all that is stored."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @property
    def effective_bits(self) -> float:
        """The bits that are stored per weight, scales included."""
        return 8 * self.nbytes / self.shape.numel()


class QuantizedLinear(nn.Linear):
    """A linear layer, y = x Ŵᵀ + b, whose weight is quantized and never trained.

    `weight` holds the codes; the other tensors are buffers, which keep their dtype when the model's
    is changed. A bias is shared with the original layer.
    """

    def __init__(self, weight: QuantizedWeight, bias: nn.Parameter | None = None) -> None:
        if not isinstance(weight, QuantizedWeight):
            raise TypeError(f"expected a QuantizedWeight, got {type(weight).__name__}")
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.bias = bias
        for name, tensor in weight.tensors().items():
            if name == "codes":
                self.weight = nn.Parameter(tensor, requires_grad=False)
            else:
                self.register_buffer(name, tensor)
        without = {name: tensor.to("meta") for name, tensor in weight.tensors().items()}
        self._form = weight.with_tensors(without)  # everything but the numbers
        self._current: tuple[list, QuantizedWeight] | None = None
        self._frozen: QuantizedWeight | None = None
        format_name = torch.tensor(list(weight.describe().encode()), dtype=torch.uint8)
        self.register_buffer("format_name", format_name)

    @property
    def quantized(self) -> QuantizedWeight:
        """The weight, whose tensors are those of the layer.

        It may have computed something from them, so it is a new one once they have changed.
        """
        if self._frozen is not None:
            return self._frozen
        states = [_state(tensor) for tensor in (self.weight, *self._buffers.values())]
        if self._current is None or states != self._current[0]:
            names = [name for name in self._form.tensors() if name != "codes"]
            tensors = {name: self._buffers[name].detach() for name in names}
            weight = self._form.with_tensors({"codes": self.weight.detach(), **tensors})
            self._current = (states, weight)
        return self._current[1]

    def freeze(self) -> None:
        """Compute with the tensors as they are now, without looking for changes in place.

        One token's product is so short that looking takes time that shows. Moving the layer,
        copying it or loading other tensors ends this.
        """
        self._frozen = self.quantized

    def _thaw(self) -> None:
        self._current = self._frozen = None

    def dequantized_weight(self) -> Tensor:
        """The weight as (out_features, in_features), in the dtype that it had."""
        return self.quantized.dequantize()

    def forward(self, x: Tensor) -> Tensor:  # x: (..., in_features)
        if not x.is_floating_point():
            raise TypeError(
                f"{type(self).__name__} needs x in floating point, got {x.dtype}; convert it"
            )
        if x.requires_grad and torch.is_grad_enabled():
            result = _Product.apply(x, self.quantized)
        else:
            result = self.quantized.matmul(x)
        return result if self.bias is None else result + self.bias.to(result.dtype)

    def extra_repr(self) -> str:
        stored = self.quantized
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, {stored.describe()}, {stored.effective_bits:.3f} bits per weight"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_current": None, "_frozen": None}

    def _apply(self, fn: Any, recurse: bool = True) -> "QuantizedLinear":
        """Move the buffers with the model but keep their dtype; `model.to(bfloat16)` calls this."""
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        self._thaw()
        for name, buffer in before.items():
            if self._buffers[name].dtype != buffer.dtype:
                self._buffers[name] = buffer.to(self._buffers[name].device)
        return self

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        errors = args[-1]  # load_state_dict raises what this list contains
        self._thaw()
        stored = state_dict.get(f"{prefix}weight")
        stored_format = state_dict.get(f"{prefix}format_name", self.format_name)
        if stored is not None and stored.is_floating_point():
            errors.append(f"{prefix}weight is not quantized: load it before you quantize the model")
        elif not torch.equal(stored_format.cpu(), self.format_name.cpu()):
            names = (bytes(name.tolist()).decode() for name in (stored_format, self.format_name))
            errors.append("{}weight has the format {}, but the layer has {}".format(prefix, *names))
        else:
            super()._load_from_state_dict(state_dict, prefix, *args)


def dense_product(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """x Ŵᵀ with the weight dequantized first, in x's dtype; on a CPU computed in fp32."""
    if x.device.type == "cpu" and x.dtype.itemsize == 2:
        return F.linear(x.float(), weight.dequantize(torch.float32)).to(x.dtype)
    return F.linear(x, weight.dequantize(x.dtype))


def _state(tensor: Tensor) -> tuple[int, int | None]:
    """Where the tensor's numbers are, and how often they were changed in place, if torch counts."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version


class _Product(torch.autograd.Function):
    """x Ŵᵀ; the weight is dequantized again for the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: QuantizedWeight) -> Tensor:
        ctx.weight = weight
        return weight.matmul(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.weight.dequantize(gradient.dtype), None
