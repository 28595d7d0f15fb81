"""`flash-attention`: the expected gradients, and the optional kernel."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from course_pkg.grading.assignments.flash_attention import cases
from tests.exercises.assignments import SOLUTIONS, notebook


def test_the_right_gradients_are_those_of_autograd_summed_over_blocks():
    generator = torch.Generator().manual_seed(0)
    q, k, v, d_output = (torch.randn(n, 4, generator=generator) for n in (3, 5, 5, 3))
    q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
    scores = q @ k.T / 2
    output = scores.softmax(1) @ v
    lse = scores.logsumexp(1)
    dq, dk, dv = torch.autograd.grad(output, (q, k, v), d_output)
    others = {"output": output, "lse": lse, "d_output": d_output}
    parts = [
        cases.backward_expected({"q": q, "k": k[rows], "v": v[rows], **others})
        for rows in (slice(0, 2), slice(2, 5))
    ]
    torch.testing.assert_close(parts[0]["dq"] + parts[1]["dq"], dq)
    torch.testing.assert_close(torch.cat([part["dk"] for part in parts]), dk)
    torch.testing.assert_close(torch.cat([part["dv"] for part in parts]), dv)


def test_the_optional_kernel_runs_without_a_gpu(tmp_path):
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    nb = notebook(SOLUTIONS, "flash-attention")
    cells = [cell.source for cell in nb.cells if cell.cell_type == "code"][-3:]
    program = tmp_path / "kernel.py"  # triton reads the source of a kernel
    program.write_text("\n".join(["import math", "import torch", *cells]))
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all(line.endswith(": right") for line in lines), done
