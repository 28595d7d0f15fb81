"""Bottleneck adapters: a small MLP behind a layer, on the layer's output::

    y = h + W_up gelu(W_down h + b_down) + b_up        h = W x + b, the frozen layer's output

W_down is (size, out_features), W_up is (out_features, size). A method needs a config, a layer, a
line in `injection.LAYERS`, and one in `peft_files.FORMATS`. Source: Houlsby et al. 2019,
"Parameter-Efficient Transfer Learning for NLP", section 2.1, behind the output layers of attention
and of the feed-forward network ("o_proj" and "down_proj" in Llama).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from course_pkg.adapters.layer import AdapterConfig, AdapterLayer
from course_pkg.common.arguments import require_integer


@dataclass(frozen=True)
class BottleneckConfig(AdapterConfig):
    """The settings of a bottleneck adapter; size is the MLP's inner width."""

    size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer(self.size, "size")


class BottleneckLinear(AdapterLayer):
    """A frozen nn.Linear (or GPT-2's Conv1D) with named bottleneck adapters behind it.

    Active adapters are applied one after the other. W_up and b_up start at zero, so a new adapter
    has no effect. It can't be merged into W, because gelu lies between the two matrices.
    """

    parts = ("bottleneck_down", "bottleneck_down_bias", "bottleneck_up", "bottleneck_up_bias")
    config_type = BottleneckConfig
    method = "a bottleneck adapter"

    def new_weights(
        self, config: BottleneckConfig, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """W_down from a normal distribution of standard deviation 0.01; zeros elsewhere."""
        down = torch.empty(config.size, self.out_features, dtype=self.adapter_dtype())
        down.normal_(std=0.01, generator=generator)
        return {
            "bottleneck_down": down,
            "bottleneck_down_bias": down.new_zeros(config.size),
            "bottleneck_up": down.new_zeros(self.out_features, config.size),
            "bottleneck_up_bias": down.new_zeros(self.out_features),
        }

    def forward(self, x: Tensor) -> Tensor:  # x: (..., in_features)
        """h + W_up gelu(W_down h + b_down) + b_up for each active adapter."""
        h = self.base(x)  # (..., out_features)
        if self.disabled:
            return h
        dtype = h.dtype
        for name in self.active:
            W_down = self.bottleneck_down[name]
            z = F.linear(h.to(W_down.dtype), W_down, self.bottleneck_down_bias[name])
            z = F.gelu(z)  # (..., size)
            h = h + F.linear(z, self.bottleneck_up[name], self.bottleneck_up_bias[name])
        return h.to(dtype)
