"""Keys and values of earlier tokens, where the caller says what each new token may see.

Tokens of a tree (`token_tree`) see only their ancestors, and rows of unequal length have padding in
the middle, after what they share (`greedy`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from course_pkg.lm.decoder import Attend
from course_pkg.lm.decoder_config import DecoderConfig


class MaskedCache:
    """The keys and values of all layers, (batch or 1, kv_heads, kept, head_dim), and positions."""

    def __init__(self, config: DecoderConfig):
        self.config = config
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * config.layers
        self.positions = torch.zeros(1, 0, dtype=torch.long)

    def attend(self, positions: Tensor, seen: Tensor) -> Attend:
        """An `attend` for one pass of a decoder; it also keeps the new tokens.

        If one row is kept, every new row continues it. positions: (batch, new). seen: (batch, new,
        kept + new), bool: what each new token sees of the kept tokens, then of the new ones.
        """
        batch = len(positions)
        kept = self.positions.to(positions.device).expand(batch, -1)
        self.positions = torch.cat((kept, positions), dim=1)  # (batch, kept + new)
        distance = positions[:, :, None] - self.positions[:, None]  # (batch, new, kept + new)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if self.layers[layer] is not None:
                old_key, old_value = (x.expand(batch, -1, -1, -1) for x in self.layers[layer])
                key = torch.cat((old_key, key), dim=2)  # (batch, kv_heads, kept + new, head_dim)
                value = torch.cat((old_value, value), dim=2)  # the same
            self.layers[layer] = (key, value)
            window = self.config.window(layer)
            mask = seen if window is None else seen & (distance < window)
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask[:, None], enable_gqa=True
            )

        return attend

    def keep(self, index: Tensor) -> None:
        """Forget all tokens but these, (kept,), and put them into this order."""
        index = index.to(self.positions.device)
        self.positions = self.positions[:, index]
        self.layers = [
            layer and (layer[0][:, :, index], layer[1][:, :, index]) for layer in self.layers
        ]
