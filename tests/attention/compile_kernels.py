"""Compile the Triton kernels for GPUs that need not be here, with TRITON_INTERPRET=0.

python -m tests.attention.compile_kernels flash, or paged.

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
from course_pkg.attention.paged_triton_kernels import merge_kernel, paged_kernel
from course_pkg.attention.triton_runtime import Rows

KERNELS = (forward_kernel, row_sums_kernel, key_gradients_kernel, query_gradients_kernel)
INSTRUCTIONS = {"wgmma.mma_async": "wgmma", "mma.sync": "mma"}


def compile_flash(
    kernel, capability: int, *, dtype: str, head_dim: int, block: int, one: bool
) -> str:
    """PTX of a kernel. one: lengths and group are 1, which triton makes constants of the kernel."""
    function = kernel if isinstance(kernel, triton.JITFunction) else kernel.fn
    constants = {"HEAD_DIM": head_dim, "PADDED_DIM": max(16, triton.next_power_of_2(head_dim))}
    constants |= {"CAUSAL": True, "BLOCK_QUERIES": block, "BLOCK_KEYS": block}
    if one:
        constants |= {"queries": 1, "keys": 1, "group": 1}
    types = {"scale": "fp32", "tuning": ("i32", "i32")}
    types |= dict.fromkeys(("queries", "keys", "group"), "i32")
    types |= dict.fromkeys(("lse", "row_sums"), Rows("*fp32", "i32", "i32", "constexpr"))
    return lower(function, capability, constants, types, dtype)


def lower(function, capability: int, constants: dict, types: dict, dtype: str) -> str:
    """PTX of a kernel, whose arguments have constants, types, or are Rows of `dtype`."""
    signature, divisible, fixed = {}, {}, {}
    for i, name in enumerate(function.arg_names):
        if name in constants:
            signature[name], fixed[(i,)] = "constexpr", constants[name]
            continue
        rows = Rows(f"*{dtype}", "i32", "i32", "i32")
        signature[name] = types.get(name, rows)
        if name not in types:
            divisible |= {(i, field): [["tt.divisibility", 16]] for field in range(4)}
        elif "constexpr" in signature[name]:  # the numbers of a log-sum-exp are adjacent
            fixed[(i, 3)] = 1
    source = ASTSource(function, signature, fixed, divisible)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]


def compile_paged(kernel, capability: int, *, rows: int, split: bool, window: int | None) -> str:
    """PTX of a kernel of paged attention, bfloat16; split: output and lse are parts in float32."""
    parts, partial_lse = (
        Rows("*fp32", "i32", "i32", "i32"),
        Rows("*fp32", "i32", "i32", "constexpr"),
    )
    types = dict.fromkeys(("parts", "part_keys"), "i32") | {"scale": "fp32"}
    types |= dict.fromkeys(("spans", "blocks"), "*i32")
    types |= {"partial": parts, "partial_lse": partial_lse, "lse": parts}
    constants = {"GROUP": 4, "BLOCK_SIZE": 16, "HEAD_DIM": 80, "PADDED_DIM": 128, "KEYS": 64}
    constants |= {"WINDOW": window, "ROWS": rows, "SPLIT": split}
    if not split:
        constants["lse"] = None
    elif kernel is paged_kernel:
        types |= {"lse": partial_lse, "output": parts}
    return lower(kernel, capability, constants, types, "bf16")


CASES = (
    (90, {"dtype": "bf16", "head_dim": 64, "block": 64, "one": False}),
    (80, {"dtype": "fp16", "head_dim": 24, "block": 32, "one": True}),
)
PAGED_CASES = (
    (90, {"rows": 64, "split": False, "window": None}),
    (80, {"rows": 16, "split": True, "window": 4096}),
)


def main(which: str) -> None:
    kernels, cases, compiled = {
        "flash": (KERNELS, CASES, compile_flash),
        "paged": ((paged_kernel, merge_kernel), PAGED_CASES, compile_paged),
    }[which]
    for kernel in kernels:
        name = getattr(kernel, "base_fn", kernel).__name__
        for capability, options in cases:
            ptx = compiled(kernel, capability, **options)
            used = [short for text, short in INSTRUCTIONS.items() if text in ptx]
            print(name, capability, *used)


if __name__ == "__main__":
    main(sys.argv[1])
