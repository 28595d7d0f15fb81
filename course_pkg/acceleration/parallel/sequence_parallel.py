"""What sequence parallelism saves: the bytes that autograd keeps for the backward pass.

Between the layers of a tensor-parallel decoder, every rank computes the same norms and sums of all
tokens, and keeps them. With `tensor_parallel(decoder, group, sequence_parallel=True)`, rank r has
the r-th of N parts of the tokens there; `kept_bytes` measures what that saves.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
section 4.2.2. Chapter: acceleration/model-parallelism.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_pkg.lm.decoder import RMSNorm


def kept_bytes(model: nn.Module, forward: Callable[[], object]) -> tuple[int, int]:
    """The bytes that a forward pass keeps: those that the norms keep, and all.

    model: whose parameters don't count. forward: a function without arguments that calls the model.
    A norm keeps its input, which is the residual sum, and what it has normalized. A tensor that
    several operations keep counts once; if a norm keeps it, as the norm's.

    >>> norm = RMSNorm(8, 1e-6)
    >>> x = torch.ones(1, 3, 8, requires_grad=True)
    >>> kept_bytes(norm, lambda: norm(x))  # x, x normalized, one 1 / rms per token
    (204, 204)
    """
    norms = [module for module in model.modules() if isinstance(module, RMSNorm)]
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, tuple[bool, Tensor]] = {}  # by place in memory; holding it keeps the place
    inside: list[nn.Module] = []

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in parameters:
            by_norm = bool(inside) or (place in kept and kept[place][0])
            kept[place] = by_norm, tensor
        return tensor

    hooks = [norm.register_forward_pre_hook(lambda norm, _: inside.append(norm)) for norm in norms]
    hooks += [norm.register_forward_hook(lambda *_: inside.clear()) for norm in norms]
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    sizes = [(by_norm, tensor.untyped_storage().nbytes()) for by_norm, tensor in kept.values()]
    return sum(size for by_norm, size in sizes if by_norm), sum(size for _, size in sizes)
