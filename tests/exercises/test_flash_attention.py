"""`flash-attention`: right answers that are not the model answer keep every point."""

import math
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from course_pkg.attention.flash import flash_attention
from course_pkg.grading.check import variant
from course_pkg.grading.checks.flash_attention import cases, student
from tests.exercises.assignments import SOLUTIONS, earning_everything, notebook, points_lost


def merge_by_maximum(output_a, lse_a, output_b, lse_b):
    """The larger log-sum-exp is subtracted, and empty rows are set at the end."""
    largest = torch.maximum(lse_a, lse_b)
    a, b = (torch.nan_to_num(lse - largest, nan=-math.inf).exp() for lse in (lse_a, lse_b))
    total = a + b
    output = (a[:, None] * output_a + b[:, None] * output_b) / total.clamp(min=1)[:, None]
    return output, torch.where(total > 0, largest + total.log(), -math.inf)


def forward_by_merging(q, k, v, block_queries, block_keys, causal):
    """Keys outside, queries inside; the tiles are merged in double precision."""
    q, k, v = (tensor.double() for tensor in (q, k, v))
    output = torch.zeros(len(q), v.shape[1]).double()
    lse = torch.full((len(q),), -math.inf).double()
    for j in range(0, len(k), block_keys):
        for i in range(0, len(q), block_queries):
            rows = slice(i, i + block_queries)
            s = torch.einsum("id,jd->ij", q[rows], k[j : j + block_keys]) * q.shape[1] ** -0.5
            if causal:
                s += torch.full_like(s, -math.inf).triu(len(k) - len(q) + i - j + 1)
            tile = torch.softmax(s, -1).nan_to_num(0) @ v[j : j + block_keys]
            merged = merge_by_maximum(output[rows], lse[rows], tile, s.logsumexp(-1))
            output[rows], lse[rows] = merged
    return output.float(), lse.float()


def forward_of_the_course(q, k, v, block_queries, block_keys, causal):
    """The module that the page explains."""
    blocks = {"block_queries": block_queries, "block_keys": block_keys}
    heads = (tensor[None, None] for tensor in (q, k, v))
    output, lse = flash_attention(*heads, causal=causal, return_lse=True, **blocks)
    return output[0, 0], lse[0, 0]


class Preallocated:
    """A cache of a fixed size, which keeps its transposed keys, and a loop over new tokens."""

    def __init__(self, project, positions):
        self.project = project
        self.positions = positions
        self.tokens = 0
        self.keys = self.values = None

    def step(self, x):
        n = self.tokens
        q, k, v = self.project(x + self.positions[n : n + len(x)])
        if self.keys is None:
            self.keys = k.new_zeros(k.shape[1], len(self.positions))
            self.values = v.new_zeros(len(self.positions), v.shape[1])
        self.keys[:, n : n + len(x)] = k.T
        self.values[n : n + len(x)] = v
        self.tokens += len(x)
        rows = [(row @ self.keys[:, : n + i]) / q.shape[1] ** 0.5 for i, row in enumerate(q, 1)]
        return torch.stack([row.softmax(0) @ self.values[: len(row)] for row in rows])

    def truncate(self, tokens):
        self.tokens = tokens


class TokenByToken:
    """A cache that projects each token as a vector."""

    def __init__(self, project, positions):
        self.project = project
        self.positions = positions
        self.keys = []
        self.values = []

    def step(self, x):
        outputs = []
        for token in x:
            q, k, v = self.project(token + self.positions[len(self.keys)])
            self.keys.append(k)
            self.values.append(v)
            weights = (torch.stack(self.keys) @ q / len(q) ** 0.5).softmax(0)
            outputs.append(weights @ torch.stack(self.values))
        return torch.stack(outputs)

    def truncate(self, tokens):
        del self.keys[tokens:], self.values[tokens:]


OTHERS = {
    "merge": [merge_by_maximum],
    "forward": [forward_by_merging, forward_of_the_course],
    "cache": [Preallocated, TokenByToken],
}
test_another_right_answer_keeps_every_point = earning_everything("flash-attention", OTHERS)


def with_a_full_mask(q, k, v, block_queries, block_keys, causal):
    """Tiles of scores, but a mask for all of them."""
    torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    return forward_by_merging(q, k, v, block_queries, block_keys, causal)


def without_tiles(q, k, v, block_queries, block_keys, causal):
    """Small tensors, but no scores."""
    return torch.zeros(len(q), v.shape[1]), torch.zeros(len(q))


def with_an_empty_tile(q, k, v, block_queries, block_keys, causal):
    """All scores at once where nobody looks, and a tensor of a tile's size."""
    torch.zeros(block_queries, block_keys)
    with torch._C.DisableTorchFunction():
        return forward_by_merging(q, k, v, len(q), len(k), causal)


def by_torch(q, k, v, block_queries, block_keys, causal):
    """torch's own attention."""
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q)) if causal else None
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return output, forward_by_merging(q, k, v, block_queries, block_keys, causal)[1]


@pytest.mark.parametrize(
    ("answer", "points"),
    [(with_a_full_mask, 2), (by_torch, 2), (without_tiles, 10), (with_an_empty_tile, 2)],
)
def test_an_answer_that_does_not_work_tile_by_tile_loses_the_points_for_memory(answer, points):
    assert points_lost("flash-attention", "forward", answer) == points


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


def test_the_example_case_worked_by_hand():
    case = variant("flash-attention/by-hand")
    assert case == {"scores": [1.0, 3.0, 2.0, 3.5], "values": [2, -1, 4, 1]}
    right = cases.by_hand_expected(case)
    assert right["maxima"] == [1.0, 3.0, 3.0, 3.5]
    assert right["factors"] == pytest.approx([0.1353, 1, 0.6065], abs=5e-5)
    # 1; 0.1353 + 1; 1.1353 + 0.3679; 1.5032 · 0.6065 + 1
    sums = [1, 1.1353, 1.5032, 1.9117]
    assert right["sums"] == pytest.approx(sums, abs=5e-5)
    # (2 · 0.0821 − 0.6065 + 4 · 0.2231 + 1) / 1.9117 and 3.5 + log 1.9117
    assert right["result"] == pytest.approx((0.7586, 4.1480), abs=1e-4)


class InABatch(TokenByToken):
    """A cache that projects all tokens again, as one batch."""

    def step(self, x):
        self.project((x + self.positions[: len(x)]).repeat(1, 1 + len(self.keys), 1))
        return super().step(x)


def test_tokens_that_are_projected_as_a_batch_are_counted():
    assert points_lost("flash-attention", "cache", InABatch) == 1


def test_a_report_names_the_shape_that_is_too_large():
    with student.Sizes() as sizes:
        torch.ones(2, 3) @ torch.ones(3, 5)
    assert sizes.larger_than(15) == sizes.row_of(3, 2, 5) == "none"
    assert sizes.larger_than(14) == "one of shape (3, 5); no more than 14 numbers are allowed"
    assert sizes.row_of(5, 3) == "one of shape (2, 5)"


def test_not_a_number_is_reported_by_its_rows():
    output = torch.tensor([[0.0, 1.0], [math.nan, 1.0]])
    found = student.described((output, torch.tensor([-math.inf, 2.0])))
    assert found["rows of the output with NaN or infinity"] == [1]
    assert found["indices where lse is -inf"] == [0]


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
