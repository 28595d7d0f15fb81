"""Random numbers that several tests share."""

import torch


def normal(*shape, seed=0):
    """Standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
