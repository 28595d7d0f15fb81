"""The kinds of CPU instructions with which this machine can run the tests.

    python tools/cpu_instructions.py

prints them, one variable of the environment and its value a line. torch chooses its own kernels by
ATEN_CPU_CAPABILITY and takes others from oneDNN, which looks at ONEDNN_MAX_CPU_ISA; the results of
different vector instructions differ in their last digits.
"""

import os
import subprocess
import sys

ATEN, ONEDNN = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"
CHOICES = (
    (ATEN, "default"),
    (ATEN, "avx2"),
    (ATEN, "avx512"),
    (ONEDNN, "AVX2"),
    (ONEDNN, "AVX512_CORE"),
)
# oneDNN says what it uses when it is called for the first time.
PROGRAM = """
import torch
print("aten", torch.backends.cpu.get_cpu_capability())
pixel = torch.ones(1, 1, 1, 1)
torch.mkldnn_convolution(pixel, pixel, None, [0, 0], [1, 1], [1, 1], 1)
"""


def used(variables: dict[str, str]) -> list[str]:
    """What torch and oneDNN say that they use in a new process with these variables."""
    environment = {k: v for k, v in os.environ.items() if k not in (ATEN, ONEDNN)}
    environment |= {"ONEDNN_VERBOSE": "1"} | variables
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("aten") or ",isa:" in line]


def choices() -> list[dict[str, str]]:
    """Variables for each kind that this machine can run; the first is its own choice: none."""
    kinds = [{}] + [{name: value} for name, value in CHOICES]
    said = [used(variables) for variables in kinds]
    return [kind for i, kind in enumerate(kinds) if said[i] not in said[:i]]


if __name__ == "__main__":
    for variables in choices():
        print(*(f"{name}={value}" for name, value in variables.items()))
