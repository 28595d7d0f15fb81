"""What prompt tuning and prefix tuning share: a frozen model and trained virtual tokens.

Both methods change the input or the cache of a model, so they wrap the whole model. The wrapper is
an adapter layer, so that `trainable_parameters`, `disable_adapters` and `set_adapter` work as they
do for LoRA. Nothing can be merged.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from course_pkg.adapters.layer import AdapterLayer
from course_pkg.common.arguments import require_integer


@dataclass(frozen=True)
class VirtualTokenConfig:
    """The setting of all methods with virtual tokens; each takes one position of the context."""

    bias: ClassVar[str] = "none"  # these methods train no biases of the base
    num_virtual_tokens: int = 20

    def __post_init__(self) -> None:
        require_integer(self.num_virtual_tokens, "num_virtual_tokens")


class TokenEncoder(nn.Module):
    """An adapter's weights: its virtual tokens, `prompt_embeddings`, or what computes them."""

    def __init__(self, **parts: Tensor) -> None:
        super().__init__()
        for name, weights in parts.items():
            setattr(self, name, nn.Parameter(weights))

    def forward(self) -> Tensor:
        return self.prompt_embeddings


class VirtualTokenModel(AdapterLayer):
    """A frozen language model in front of whose text each adapter puts trained virtual tokens.

    The base is a decoder-only transformers model. At most one adapter is active. Call the wrapper
    as you call the model: it adds virtual tokens when the cache is empty, makes the attention mask
    longer, and moves `position_ids` up. Without `position_ids`, the model counts every column,
    padding included: give them for batches that are padded on the left.
    """

    wraps = "a decoder-only language model of transformers (AutoModelForCausalLM)"
    config_type = VirtualTokenConfig
    one_active = True

    def __init__(
        self,
        base: nn.Module,
        config: Any = None,
        adapter_name: str = "default",
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        if isinstance(base, nn.Module) and any(isinstance(m, AdapterLayer) for m in base.modules()):
            raise TypeError(
                f"this {type(base).__name__} has adapters already; merge or remove them first, "
                "because a model has adapters of one method"
            )
        trained = [p for p in base.parameters() if p.requires_grad] if self.accepts(base) else []
        super().__init__(base)
        self.encoders = nn.ModuleDict()
        self.train(base.training)
        if config is not None:
            try:
                self.add_adapter(adapter_name, config, generator=generator)
            except Exception:
                for parameter in trained:
                    parameter.requires_grad_(True)
                raise

    @classmethod
    def accepts(cls, module: nn.Module) -> bool:
        known = isinstance(module, PreTrainedModel) and module.can_generate()
        return known and not module.config.is_encoder_decoder

    def new_encoder(self, config: Any, generator: torch.Generator) -> TokenEncoder:
        """A module that computes what an adapter's file holds."""
        raise NotImplementedError

    def add_virtual_tokens(self, inputs: dict[str, Any], encoder: nn.Module) -> dict[str, Any]:
        """The inputs of the first forward pass of a text, with the virtual tokens in them."""
        raise NotImplementedError

    @classmethod
    def file_settings(cls, base: PreTrainedModel) -> dict[str, int]:
        """The model's sizes by the names that PEFT's file has for them."""
        raise NotImplementedError

    @classmethod
    def width(cls, base: PreTrainedModel) -> int:
        """The numbers that one virtual token has in the file."""
        raise NotImplementedError

    def add_weights(self, name: str, config: Any, generator: torch.Generator) -> None:
        """Draw an adapter's virtual tokens, which must leave room for text."""
        self._require_positions(config.num_virtual_tokens + 1, config.num_virtual_tokens)
        encoder = self.new_encoder(config, generator)
        self.encoders[name] = encoder.to(self.device).train(self.training)

    def weights_of(self, name: str) -> dict[str, nn.Parameter]:
        return dict(self.encoders[name].named_parameters())

    def set_embeddings(self, name: str, prompt_embeddings: Tensor) -> None:
        """Give an adapter these weights, (num_virtual_tokens, width), and drop its MLP."""
        weights = prompt_embeddings.detach().to(self.device, self.adapter_dtype(), copy=True)
        self.encoders[name] = TokenEncoder(prompt_embeddings=weights)
        self.set_active(self.active)

    def forward(self, input_ids: Tensor | None = None, **inputs: Any) -> Any:
        """What the base returns for the text after the virtual tokens.

        input_ids, labels: (batch, tokens); attention_mask: (batch, cached + tokens), virtual tokens
        not counted; position_ids count from the first token of the text.
        """
        return self.base(**self.base_inputs({"input_ids": input_ids, **inputs}))

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        def prepare(_: nn.Module, positional: tuple, inputs: dict[str, Any]) -> tuple[tuple, dict]:
            if not inputs.get("use_cache", True):  # the last pass returned its prefix as a cache
                inputs = {**inputs, "past_key_values": None}
            return positional, self.base_inputs(inputs)

        hook = self.base.register_forward_pre_hook(prepare, with_kwargs=True)
        try:
            return self.base.generate(*args, **kwargs)
        finally:
            hook.remove()

    def base_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The base's inputs for these inputs of the wrapper; the same ones while disabled."""
        if self.disabled or not self.active:
            return inputs
        text = inputs.get("inputs_embeds")
        text = inputs.get("input_ids") if text is None else text
        if getattr(text, "ndim", 0) < 2:
            raise ValueError("give input_ids, (batch, tokens), or inputs_embeds")
        n = self.configs[self.active[0]].num_virtual_tokens
        cache = inputs.get("past_key_values")
        cached = 0 if cache is None else int(cache.get_seq_length())
        self._require_positions((cached or n) + text.shape[1], n)
        inputs = dict(inputs)
        mask = inputs.get("attention_mask")
        positions = inputs.get("position_ids")
        if getattr(cache, "is_compileable", False):
            raise ValueError(
                "a static cache has no room for virtual tokens; use a dynamic cache (generate's "
                "default: leave out cache_implementation)"
            )
        if mask is not None:
            shape = (len(text), (cached and cached - n) + text.shape[1])
            if (mask_shape := tuple(getattr(mask, "shape", ()))) != shape:
                raise ValueError(
                    f"attention_mask must be (batch, cached + tokens), {shape} without the virtual "
                    f"tokens, got {mask_shape}"
                )
            inputs["attention_mask"] = torch.cat([mask.new_ones(len(mask), n), mask], 1)
        if positions is not None:
            inputs["position_ids"] = positions + n
        return inputs if cached else self.add_virtual_tokens(inputs, self.encoders[self.active[0]])

    @property
    def merged(self) -> bool:
        return False

    def merge(self) -> None:
        raise NotImplementedError(
            f"{self.method} can't be merged: virtual tokens are input, not weights; "
            "keep the wrapper and its adapter's file"
        )

    def without_adapters(self) -> nn.Module:
        raise TypeError(f"take model.base, the unchanged model, out of the {type(self).__name__}")

    def get_base_model(self) -> PreTrainedModel:
        return self.base

    def can_generate(self) -> bool:
        return True

    @property
    def config(self) -> Any:
        return self.base.config

    @property
    def device(self) -> torch.device:
        return self.base.device

    def adapter_dtype(self) -> torch.dtype:
        return self.base.dtype if self.base.dtype == torch.float64 else torch.float32

    def _require_positions(self, needed: int, virtual: int) -> None:
        limit = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        if limit is not None and needed > limit:
            raise ValueError(
                f"{virtual} virtual tokens and {needed - virtual} of text need {needed} positions, "
                f"and the model has {limit} (max_position_embeddings); use fewer of either"
            )
