"""Prompt tuning: trained vectors in front of the embedded text::

    input = [P; E(text)]        P is (num_virtual_tokens, hidden_size), E the frozen embedding

Only P is trained. The labels of the virtual tokens are -100, so no loss is computed there.
Source: Lester, Al-Rfou & Constant 2021, "The Power of Scale for Parameter-Efficient Prompt Tuning".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from course_pkg.adapters.virtual_tokens import TokenEncoder, VirtualTokenConfig, VirtualTokenModel
from course_pkg.common.arguments import require_string

IGNORE_INDEX = -100


@dataclass(frozen=True)
class PromptTuningConfig(VirtualTokenConfig):
    """The settings of prompt tuning.

    Attributes:
        init: where P starts: "vocabulary", the embeddings of random tokens; "random", a standard
            normal distribution, as PEFT does by default; or the ids of tokens, which are repeated
            until there are enough (see `from_text`).

    Source: Lester et al. 2021, section 2.
    """

    init: str | Sequence[int] = "vocabulary"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init in ("vocabulary", "random"):
            return
        listed = isinstance(self.init, Iterable) and not isinstance(self.init, str)
        tokens = tuple(self.init) if listed else ()
        if not tokens or not all(type(token) is int and token >= 0 for token in tokens):
            raise ValueError(
                f'init must be "vocabulary", "random" or token ids, got {self.init!r:.80}; '
                "for a text, use PromptTuningConfig.from_text"
            )
        n = self.num_virtual_tokens
        if len(tokens) > n:
            raise ValueError(
                f"init has {len(tokens)} tokens and num_virtual_tokens is {n}; the rest would be "
                f"lost: shorten the text or use {len(tokens)} virtual tokens"
            )
        object.__setattr__(self, "init", (tokens * n)[:n])

    @classmethod
    def from_text(
        cls, text: str, tokenizer: Any, num_virtual_tokens: int | None = None
    ) -> "PromptTuningConfig":
        """Start from a text's tokens, special ones that the tokenizer adds included, as in PEFT.

        By default there are as many virtual tokens as the text has; a shorter text is repeated.
        """
        ids = list(tokenizer(require_string(text, "text"))["input_ids"])
        if not ids:
            raise ValueError(f"the text {text!r} has no tokens; give a text that has some")
        return cls(len(ids) if num_virtual_tokens is None else num_virtual_tokens, ids)


class PromptTunedModel(VirtualTokenModel):
    """A frozen language model with any number of named prompts, one of them active.

    The weights are `encoders[name].prompt_embeddings`, in fp32 (fp64 for a model in fp64), and are
    cast to the embeddings' dtype. `forward` returns the logits of the text only, (batch, tokens,
    vocabulary); PEFT returns the virtual tokens' too.
    """

    config_type = PromptTuningConfig
    method = "prompt tuning"

    def new_encoder(self, config: PromptTuningConfig, generator: torch.Generator) -> TokenEncoder:
        embed = self.base.get_input_embeddings()
        tokens, width = embed.weight.shape
        n = config.num_virtual_tokens
        if config.init == "random":
            weights = torch.empty(n, width, dtype=self.adapter_dtype()).normal_(generator=generator)
            return TokenEncoder(prompt_embeddings=weights)
        if config.init == "vocabulary":
            ids = torch.randint(tokens, (n,), generator=generator, device="cpu")
        else:
            ids = torch.tensor(config.init, device="cpu")
        if int(ids.max()) >= tokens:
            raise ValueError(
                f"init has the token {int(ids.max())}, and the model has tokens 0 to {tokens - 1}; "
                "use the model's own tokenizer"
            )
        with torch.no_grad():
            weights = embed(ids.to(embed.weight.device)).to(self.adapter_dtype(), copy=True)
        return TokenEncoder(prompt_embeddings=weights)

    def forward(self, input_ids: Tensor | None = None, **inputs: Any) -> Any:
        """The base's result; its logits and loss cover the text only."""
        wanted = inputs.pop("return_dict", None)
        wanted = self.config.return_dict if wanted is None else wanted
        result = super().forward(input_ids, **inputs, return_dict=True)
        text = inputs["inputs_embeds"] if input_ids is None else input_ids
        if hasattr(result, "logits"):
            result.logits = result.logits[:, -text.shape[1] :]
        return result if wanted else result.to_tuple()

    def add_virtual_tokens(self, inputs: dict[str, Any], encoder: nn.Module) -> dict[str, Any]:
        """Put P in front of the embedded text, and -100 in front of the labels."""
        text = inputs.get("inputs_embeds")
        text = self.base.get_input_embeddings()(inputs["input_ids"]) if text is None else text
        P = encoder().to(text.dtype).expand(len(text), -1, -1)  # (batch, n, hidden_size)
        n = P.shape[1]
        labels = inputs.get("labels")
        positions = inputs.get("position_ids")
        if labels is not None:
            ignored = labels.new_full((len(labels), n), IGNORE_INDEX)
            inputs["labels"] = torch.cat([ignored, labels], 1)
        if positions is not None:
            own = torch.arange(n, device=positions.device).expand(len(positions), -1)
            inputs["position_ids"] = torch.cat([own, positions], 1)
        if isinstance(keep := inputs.get("logits_to_keep"), Tensor):  # columns of the text
            inputs["logits_to_keep"] = keep + n
        return {**inputs, "input_ids": None, "inputs_embeds": torch.cat([P, text], 1)}

    @classmethod
    def file_settings(cls, base: PreTrainedModel) -> dict[str, int]:
        text = base.config.get_text_config()
        heads = getattr(text, "num_attention_heads", None)  # Mamba has none
        layers = text.num_hidden_layers
        return {"token_dim": cls.width(base), "num_attention_heads": heads, "num_layers": layers}

    @classmethod
    def width(cls, base: PreTrainedModel) -> int:
        return base.get_input_embeddings().weight.shape[1]
