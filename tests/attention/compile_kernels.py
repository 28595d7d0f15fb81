"""Compile every Triton kernel for GPUs that need not be here: python -m …, with TRITON_INTERPRET=0.

Prints a line for each: kernel, compute capability, and the tensor-core instruction that it uses.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from course_pkg.attention.flash_triton_backward import (
    key_gradients_kernel,
    query_gradients_kernel,
    row_sums_kernel,
)
from course_pkg.attention.flash_triton_forward import forward_kernel
from course_pkg.attention.triton_runtime import Rows

KERNELS = (forward_kernel, row_sums_kernel, key_gradients_kernel, query_gradients_kernel)
INSTRUCTIONS = {"wgmma.mma_async": "wgmma", "mma.sync": "mma"}


def compile_kernel(
    kernel, capability: int, *, dtype: str, head_dim: int, block: int, packed: bool, one: bool
) -> str:
    """PTX of a kernel. one: lengths and group are 1, which triton makes constants of the kernel."""
    function = kernel if isinstance(kernel, triton.JITFunction) else kernel.fn
    constants = {"HEAD_DIM": head_dim, "PADDED_DIM": max(16, triton.next_power_of_2(head_dim))}
    constants |= {"CAUSAL": True, "BLOCK_QUERIES": block, "BLOCK_KEYS": block}
    if not packed:
        constants |= {"query_starts": None, "key_starts": None}
    if one:
        constants |= {"queries": 1, "keys": 1, "group": 1}
    types = {
        "scale": "fp32",
        "tuning": ("i32", "i32"),
        "query_starts": "*i32",
        "key_starts": "*i32",
    }
    types |= dict.fromkeys(("queries", "keys", "group"), "i32")
    signature, divisible, fixed = {}, {}, {}
    for i, name in enumerate(function.arg_names):
        if name in constants:
            signature[name], fixed[(i,)] = "constexpr", constants[name]
        elif name in types:
            signature[name] = types[name]
        elif name in ("lse", "row_sums"):
            signature[name], fixed[(i, 3)] = Rows("*fp32", "i32", "i32", "constexpr"), 1
        else:
            signature[name] = Rows(f"*{dtype}", "i32", "i32", "i32")
            divisible |= {(i, field): [["tt.divisibility", 16]] for field in range(4)}
    source = ASTSource(function, signature, fixed, divisible)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]


CASES = (
    (90, {"dtype": "bf16", "head_dim": 64, "block": 64, "packed": False, "one": False}),
    (80, {"dtype": "fp16", "head_dim": 24, "block": 32, "packed": True, "one": True}),
)


def main() -> None:
    for kernel in KERNELS:
        name = getattr(kernel, "base_fn", kernel).__name__
        for capability, options in CASES:
            ptx = compile_kernel(kernel, capability, **options)
            used = [short for text, short in INSTRUCTIONS.items() if text in ptx]
            print(name, capability, *used)


if __name__ == "__main__":
    sys.exit(main())
