"""Compile the Triton kernels for GPUs that need not be here, with TRITON_INTERPRET=0.

python -m tests.acceleration.attention.compile_kernels

Prints a line for each: kernel, compute capability, and the tensor-core instruction that it uses.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from course_pkg.acceleration.attention.flash_triton import (
    forward_kernel,
    key_gradients_kernel,
    query_gradients_kernel,
    row_sums_kernel,
)
from course_pkg.acceleration.attention.kernel_arguments import Rows
from course_pkg.acceleration.attention.paged_triton import merge_kernel, paged_kernel
from course_pkg.acceleration.quantization.w4a16_triton import _tile, w4a16_kernel

FLASH_KERNELS = (forward_kernel, row_sums_kernel, key_gradients_kernel, query_gradients_kernel)
INSTRUCTIONS = {"wgmma.mma_async": "wgmma", "mma.sync": "mma"}
ADDRESSES = ("i32", "i32", "i32")
LSE = Rows("*fp32", "i32", "i32", "constexpr")  # the numbers of a log-sum-exp are adjacent
PARTS = Rows("*fp32", *ADDRESSES)
FLASH_TYPES = {"scale": "fp32", "tuning": ("i32", "i32"), "lse": LSE, "row_sums": LSE}
FLASH_TYPES |= dict.fromkeys(("queries", "keys", "group"), "i32")
PAGED_TYPES = {"scale": "fp32", "parts": "i32", "part_keys": "i32", "spans": "*i32"}
PAGED_TYPES |= {"blocks": "*i32", "partial": PARTS, "partial_lse": LSE}
W4A16_TYPES = {"codes": "*u8", "scale": "*fp16", "zero": "*u8"}
W4A16_TYPES |= dict.fromkeys(("x_row", "tokens", "rows", "columns"), "i32")
W4A16_TYPES |= dict.fromkeys(("group_size", "part_columns"), "i32")
HEADS = {"GROUP": 4, "BLOCK_SIZE": 16, "HEAD_DIM": 80, "PADDED_DIM": 128, "KEYS": 64}
SMALL = {"HEAD_DIM": 24, "PADDED_DIM": 32, "CAUSAL": True, "BLOCK_QUERIES": 32, "BLOCK_KEYS": 32}
LARGE = {"HEAD_DIM": 64, "PADDED_DIM": 64, "CAUSAL": True, "BLOCK_QUERIES": 64, "BLOCK_KEYS": 64}
ONE = {"queries": 1, "keys": 1, "group": 1}  # triton makes a constant of an argument that is 1
WHOLE = HEADS | {"WINDOW": None, "ROWS": 64, "SPLIT": False, "lse": None}
SPLIT = HEADS | {"WINDOW": 4096, "ROWS": 16, "SPLIT": True}


def w4a16(capability, tokens, step, dtype):
    """The case of the W4A16 kernel for so many tokens, whose tile follows from them."""
    tile = _tile(tokens)
    constants = {"ROWS": tile["ROWS"], "TOKENS": tile["TOKENS"], "STEP": step}
    types = W4A16_TYPES | {"x": f"*{dtype}", "output": "*fp32" if tokens <= 16 else f"*{dtype}"}
    return w4a16_kernel, capability, constants, types, dtype


CASES = [  # kernel, compute capability, constants, types of other arguments and of the tensors
    *((kernel, 90, LARGE, FLASH_TYPES, "bf16") for kernel in FLASH_KERNELS),
    *((kernel, 80, SMALL | ONE, FLASH_TYPES, "fp16") for kernel in FLASH_KERNELS),
    (paged_kernel, 90, WHOLE, PAGED_TYPES, "bf16"),
    (paged_kernel, 80, SPLIT, PAGED_TYPES | {"lse": LSE, "output": PARTS}, "bf16"),
    (merge_kernel, 90, WHOLE, PAGED_TYPES, "bf16"),
    (merge_kernel, 80, SPLIT, PAGED_TYPES, "bf16"),
    *(w4a16(*case) for case in ((80, 1, 64, "fp16"), (80, 300, 128, "bf16"))),
    *(w4a16(*case) for case in ((90, 16, 128, "bf16"), (90, 300, 64, "fp16"))),
]


def lower(function, capability: int, constants: dict, types: dict, dtype: str) -> str:
    """PTX of a kernel, whose arguments have constants, types, or are Rows of `dtype`."""
    signature = {}
    divisible = {}
    fixed = {}
    for i, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            fixed[(i,)] = constants[name]
            continue
        signature[name] = types.get(name, Rows(f"*{dtype}", *ADDRESSES))
        if name not in types:
            divisible |= {(i, field): [["tt.divisibility", 16]] for field in range(4)}
        elif "constexpr" in signature[name]:
            fixed[(i, 3)] = 1
    source = ASTSource(function, signature, fixed, divisible)
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": 4, "num_stages": 3}
    return triton.compile(source, target=target, options=options).asm["ptx"]


if __name__ == "__main__":
    for kernel, *case in CASES:
        function = kernel if isinstance(kernel, triton.JITFunction) else kernel.fn
        ptx = lower(function, *case)
        name = getattr(kernel, "base_fn", kernel).__name__
        print(name, case[0], *(short for text, short in INSTRUCTIONS.items() if text in ptx))
