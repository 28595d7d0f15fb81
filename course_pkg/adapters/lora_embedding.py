"""LoRA on an embedding: the change of a token's row is a product of two thin matrices.

    row(token) = E[token] + scaling * B A[:, token]

E is (num_embeddings, embedding_dim), A is (rank, num_embeddings), B is (embedding_dim, rank).
Looking up a column of A replaces the first matrix product. Here A starts at zero and B is random,
the reverse of a linear layer; the change is zero all the same.

Source: PEFT and loralib, which start embeddings in this way.
Chapter: adapters/peft.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.adapters.layer import AdapterLayer
from course_pkg.adapters.lora import LoRAConfig


class LoRAEmbedding(AdapterLayer):
    """A frozen nn.Embedding with any number of named LoRA adapters.

    The weights are `lora_embedding_A[name]`, (rank, num_embeddings), and `lora_embedding_B[name]`,
    (embedding_dim, rank). An output layer tied to the embedding keeps the original weight. Dropout
    is not applied, as in PEFT. Raises TypeError if base is another kind of layer.

    >>> layer = LoRAEmbedding(nn.Embedding(10, 4), LoRAConfig(rank=2))
    >>> sum(p.numel() for p in layer.parameters() if p.requires_grad)  # 2·(10 + 4)
    28
    """

    parts = ("lora_embedding_A", "lora_embedding_B")
    config_type = LoRAConfig
    method = "LoRA"
    wraps = "an nn.Embedding"

    @classmethod
    def accepts(cls, module: nn.Module) -> bool:
        """Whether the module is an nn.Embedding."""
        return isinstance(module, nn.Embedding)

    @property
    def in_features(self) -> int:
        """The number of tokens."""
        return self.base.num_embeddings

    @property
    def out_features(self) -> int:
        """The length of a row."""
        return self.base.embedding_dim

    def new_weights(self, config: LoRAConfig, generator: torch.Generator) -> dict[str, Tensor]:
        """A = 0 and a standard normal B."""
        rank = config.rank_of(self.module_name)
        B = torch.empty(self.out_features, rank, dtype=self.adapter_dtype())
        B.normal_(generator=generator)
        A = B.new_zeros(rank, self.in_features)
        return {"lora_embedding_A": A, "lora_embedding_B": B}

    def scaling(self, name: str) -> float:
        """The factor on B A of one adapter in this module."""
        return self.configs[name].scaling_of(self.module_name)

    def forward(self, ids: Tensor) -> Tensor:  # ids: (...), integers
        """E[ids] + scaling * B A[:, ids], summed over the active adapters: (..., embedding_dim)."""
        result = self.base(ids)
        if self.merged or self.disabled:
            return result
        dtype = result.dtype
        for name in self.active:
            A, B = self.lora_embedding_A[name], self.lora_embedding_B[name]
            low = F.embedding(ids, A.T, self.base.padding_idx)  # (..., rank)
            result = result + self.scaling(name) * F.linear(low, B)
        return result.to(dtype)

    def delta_weight(self, name: str) -> Tensor:
        """scaling * (B A) transposed, (num_embeddings, embedding_dim), in fp32 or fp64."""
        A, B = self.lora_embedding_A[name].detach(), self.lora_embedding_B[name].detach()
        wide = torch.promote_types(A.dtype, torch.float32)
        return self.scaling(name) * (B.to(wide) @ A.to(wide)).T

    def merged_weight(self) -> Tensor:
        """E plus the change of the active adapters."""
        delta = sum(self.delta_weight(name) for name in self.active)
        return self.base.weight.detach().to(delta.dtype) + delta
