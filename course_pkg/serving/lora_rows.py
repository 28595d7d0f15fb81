"""Several LoRA adapters on one base in one batch: each row of a packed batch has its own, or none.

The base computes all rows at once. The rows are sorted by adapter, so that each adapter adds its
two thin products to one slice of them. Sources: Chen et al. (2023), "Punica"; Sheng et al. (2023),
"S-LoRA".
"""

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.adapters.adapter_io import PREFIX, load_adapter
from course_pkg.adapters.injection import active_adapters, adapter_layers, layer_types
from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.adapters.methods import save
from course_pkg.adapters.peft_files import read_config, read_settings, read_weights
from course_pkg.adapters.prompt_io import PROMPT_TYPES
from course_pkg.lm.decoder import Decoder

Groups = list[tuple[str, slice]]  # an adapter's name, and its rows


class LoRARows(nn.Module):
    """W x + b, and scaling * B(A(x)) of each row's adapter. groups: the step's, shared."""

    def __init__(self, layer: LoRALinear, groups: Groups):
        super().__init__()
        self.layer = layer
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        result = layer.base(x)
        for name, rows in self.groups:
            if name in layer.configs:
                A = layer.lora_A[name]
                B = layer.lora_B[name]
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

    Args:
        adapters: by name, a folder that course_pkg.adapters or PEFT wrote, or a model whose active
            adapter, of course_pkg.adapters, is meant.

    Raises:
        ValueError: for one that is not LoRA on linear layers, or that changes lm_head.
    """
    shared: dict[int, Tensor] = {id(buffer): buffer for buffer in decoder.buffers()}
    for parameter in decoder.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), parameter.requires_grad)
    decoder = deepcopy(decoder, shared)  # new modules and parameters, the same memory
    groups: Groups = []
    for name, source in adapters.items():
        if isinstance(source, nn.Module):
            with TemporaryDirectory() as folder:
                _save(source, folder, name)
                _load(decoder, Path(folder), name)
        else:
            _load(decoder, Path(source), name)
    for path, layer in adapter_layers(decoder).items():
        decoder.set_submodule(path, LoRARows(layer, groups))
    return decoder.eval(), groups


def _save(model: nn.Module, folder: str, name: str) -> None:
    if hasattr(model, "peft_config") and not adapter_layers(model):
        raise ValueError(
            f"adapter {name!r} is a {type(model).__name__} of PEFT: save it with save_pretrained, "
            "and give the folder that has adapter_config.json"
        )
    save(model, folder, next(iter(active_adapters(model)), "default"))


def check_adapter(folder: Path, name: str) -> None:
    """Refuse an adapter that the engine can't take, as far as its folder shows without the model.

    Raises:
        ValueError: for an adapter that is not LoRA alone, or that changes lm_head.
    """
    if (kind := read_settings(folder)["peft_type"]) in PROMPT_TYPES:
        raise _not_lora(name, f"a trained prompt or prefix ({kind})")
    config = read_config(folder)
    if config.bias != "none":
        raise ValueError(
            f"adapter {name!r} has trained biases of the base (bias={config.bias!r}), which every "
            "other row would get too; merge it into a model of its own, and serve that"
        )
    if type(config) is not LoRAConfig:
        raise _not_lora(name, layer_types(config)[0].method)
    if config.modules_to_save:
        raise _not_lora(name, f"LoRA with modules_to_save {list(config.modules_to_save)}")
    if any(key.startswith(f"{PREFIX}lm_head.") for key in read_weights(folder)):
        raise ValueError(
            f"adapter {name!r} changes lm_head, which the engine computes without adapters: train "
            "it without lm_head in target_modules, or merge it into a model with merge_adapters "
            "and remove_adapters of course_pkg.adapters.injection, with "
            "config.tie_word_embeddings = False, and serve that"
        )


def _load(decoder: Decoder, folder: Path, name: str) -> None:
    check_adapter(folder, name)
    load_adapter(_Checkpoint(decoder), folder, name)
    for path, layer in adapter_layers(decoder).items():
        if type(layer) is not LoRALinear:
            raise _not_lora(name, f"{layer.method} on {path}, which is not a linear layer")


def _not_lora(name: str, kind: str) -> ValueError:
    return ValueError(
        f"adapter {name!r} is {kind}: the engine takes LoRA on linear layers alone; if the method "
        "can be merged, merge this adapter into a model and serve that; otherwise call generate of "
        "the model that has the adapter"
    )
