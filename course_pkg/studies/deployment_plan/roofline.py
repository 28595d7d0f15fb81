"""What an iteration takes, from data sheets: bytes to read, operations to compute.

Not here: mixtures of experts, and communication of GPUs. Sources: Williams, Waterman and Patterson
2009; Pope et al. 2022, section 2. Chapter: deployment/plan.
"""

import math
from dataclasses import dataclass

import torch

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.serving.kv_cache import cache_bytes
from course_pkg.studies.scheduling.iteration_cost import CostModel


@dataclass(frozen=True)
class ModelSize:
    """What the weights and the cache of a model take.

    Attributes:
        matrices: parameters that a token is multiplied with.
        others: embeddings that are only looked up, norms and biases, in 16 bits.
        weight_bits, cache_bits: on average, scales included.
    """

    matrices: int
    others: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weight_bits: float = 16.0
    cache_bits: float = 16.0

    @classmethod
    def of(
        cls, config: DecoderConfig, *, weight_bits: float = 16.0, cache_bits: float = 16.0
    ) -> "ModelSize":
        """The size of a decoder."""
        require_between(weight_bits, "weight_bits", 0, 64)
        require_between(cache_bits, "cache_bits", 0, 64)
        with torch.device("meta"):  # shapes alone
            decoder = Decoder(config)
        parameters = sum(parameter.numel() for parameter in decoder.parameters())
        matrices = sum(
            parameter.numel() for parameter in decoder.parameters() if parameter.ndim == 2
        )
        if not config.tied:  # the embeddings are then looked up, and no output matrix
            matrices -= decoder.embed_tokens.weight.numel()
        return cls(
            matrices=matrices,
            others=parameters - matrices,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            weight_bits=weight_bits,
            cache_bits=cache_bits,
        )

    @property
    def parameters(self) -> int:
        """All parameters; tied embeddings count once."""
        return self.matrices + self.others

    @property
    def weight_bytes(self) -> float:
        """Of all weights."""
        return self.matrices * self.weight_bits / 8 + self.others * 2

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return cache_bytes(
            self.layers, self.kv_heads, self.head_dim, 1, bytes_per_value=self.cache_bits / 8
        )


@dataclass(frozen=True)
class Accelerator:
    """A GPU: bytes of memory, bytes and dense operations per second, and its price per hour."""

    name: str
    memory: float
    bandwidth: float
    flops: float
    price: float

    def __post_init__(self):
        for name in ("memory", "bandwidth", "flops", "price"):
            require_between(getattr(self, name), name, 0, math.inf)


def roofline(
    size: ModelSize,
    accelerator: Accelerator,
    *,
    pieces: int = 1,
    bandwidth_share: float = 1.0,
    compute_share: float = 1.0,
    fixed: float = 0.0,
) -> CostModel:
    """The cost of iterations as data sheets promise it: times of reading and computing add up.

    Args:
        pieces: accelerators that share each layer.
        bandwidth_share, compute_share: what a program reaches; 1 is a promise that nobody keeps.
        fixed: seconds that each iteration takes besides.
    """
    require_integer(pieces, "pieces")
    for name, share in (("bandwidth_share", bandwidth_share), ("compute_share", compute_share)):
        require_between(share, name, 0, 1 + 1e-12)
    require_between(fixed, "fixed", 0, math.inf, closed=True)
    bandwidth = pieces * accelerator.bandwidth * bandwidth_share
    flops = pieces * accelerator.flops * compute_share
    token = 2 * size.matrices / flops
    return CostModel(
        base=size.weight_bytes / bandwidth + fixed,
        prompt=token,
        pairs=4 * size.layers * size.heads * size.head_dim / flops,
        sequences=token,
        context=size.cache_bytes_per_token / bandwidth,
    )
