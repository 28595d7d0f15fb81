"""Compile the W4A16 kernel for GPUs that need not be here, with TRITON_INTERPRET=0.

python -m tests.quantization.compile_w4a16

Prints a line for each: kernel, tokens, compute capability, and the tensor-core instruction that
it uses.
"""

from course_pkg.quantization.w4a16_triton import _tile, w4a16_kernel
from tests.attention.compile_kernels import INSTRUCTIONS, lower

SIZES = ("x_row", "tokens", "rows", "columns", "group_size", "part_columns")
TYPES = {"codes": "*u8", "scale": "*fp16", "zero": "*u8"} | dict.fromkeys(SIZES, "i32")
CASES = [(80, 1, 64, "fp16"), (80, 300, 128, "bf16"), (90, 16, 128, "bf16"), (90, 300, 64, "fp16")]

if __name__ == "__main__":
    for capability, tokens, step, dtype in CASES:
        tile = _tile(tokens)
        sizes = {name: tile.pop(name) for name in ("ROWS", "TOKENS")}
        types = TYPES | {"x": f"*{dtype}", "output": "*fp32" if tokens <= 16 else f"*{dtype}"}
        ptx = lower(w4a16_kernel, capability, {"STEP": step, **sizes}, types, dtype, **tile)
        used = (short for text, short in INSTRUCTIONS.items() if text in ptx)
        plural = "" if tokens == 1 else "s"
        print(f"w4a16_kernel, {tokens} token{plural}, {capability}:", *used)
