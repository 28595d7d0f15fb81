"""Several LoRA adapters on one base in one batch: each row of a packed batch has its own, or none.

The base computes all rows at once. The rows are sorted by adapter, so that each adapter adds its
two thin products to one slice of them. Methods that change the base's own output, such as DoRA, are
not here: merge such an adapter into a model of its own.
Sources: Chen et al. (2023), "Punica"; Sheng et al. (2023), "S-LoRA".
Chapter: serving/continuous-batching.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.adapters.adapter_files import read_config
from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.injection import active_adapters, adapter_layers, layer_types
from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.lm.decoder import Decoder

Groups = list[tuple[str, slice]]  # an adapter's name, and its rows


class LoRARows(nn.Module):
    """W x + b, and scaling * B(A(x)) of the adapter that a row has. groups: the step's, shared."""

    def __init__(self, layer: LoRALinear, groups: Groups):
        super().__init__()
        self.layer, self.groups = layer, groups

    def forward(self, x: Tensor) -> Tensor:
        """x: (1, rows, in_features); the result is (1, rows, out_features)."""
        result, layer = self.layer.base(x), self.layer
        for name, rows in self.groups:
            if name in layer.configs:
                A, B = layer.lora_A[name], layer.lora_B[name]
                low = F.linear(x[:, rows].to(A.dtype), A) * layer.scaling(name)
                result[:, rows] += F.linear(low, B)  # (1, the adapter's rows, out_features)
        return result


class _Checkpoint(nn.Module):
    """Modules under the names that they have in a checkpoint, which adapter files use."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.model = decoder


def with_adapters(
    decoder: Decoder, adapters: Mapping[str, str | os.PathLike | nn.Module]
) -> tuple[Decoder, Groups]:
    """A decoder that shares the weights and has the adapters, and the list that says whose rows.

    adapters: by name, a folder that course_pkg.adapters or PEFT wrote, or a model whose active
    adapter is meant. Raises what `load_adapter` raises, and ValueError for one that is not LoRA on
    linear layers.
    """
    with torch.device("meta"):
        copy = Decoder(decoder.config)
    copy.load_state_dict(decoder.state_dict(), assign=True)
    groups: Groups = []
    for name, source in adapters.items():
        if isinstance(source, nn.Module):
            with TemporaryDirectory() as folder:
                save_adapter(source, folder, next(iter(active_adapters(source)), "default"))
                _load(copy, folder, name)
        else:
            _load(copy, source, name)
    for path, layer in adapter_layers(copy).items():
        copy.set_submodule(path, LoRARows(layer, groups))
    return copy.eval(), groups


def _load(decoder: Decoder, folder: str | os.PathLike, name: str) -> None:
    config = read_config(Path(folder))
    if config.bias != "none":
        raise ValueError(
            f"adapter {name!r} has trained biases of the base (bias={config.bias!r}), which every "
            "other row would get too; merge it into a model of its own, and serve that"
        )
    if type(config) is LoRAConfig:
        load_adapter(_Checkpoint(decoder), folder, name)
        if all(type(layer) is LoRALinear for layer in adapter_layers(decoder).values()):
            return
    raise ValueError(
        f"adapter {name!r} is {layer_types(config)[0].method} with modules_to_save "
        f"{list(config.modules_to_save)}: the engine takes LoRA on linear layers alone; "
        "merge this adapter into a model, and serve that"
    )
