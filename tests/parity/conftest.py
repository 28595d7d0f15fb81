"""What the comparisons with other libraries share."""

import pytest
import torch

from course_pkg.quantization import int8_matmul


@pytest.fixture
def exact_int_mm(monkeypatch):
    """`torch._int_mm` without overflow, for libraries that call it on every CPU.

    With AVX-512 but no VNNI it adds two products in 16 bits. Ours is not called there.
    """
    if not int8_matmul._int_mm_is_exact():
        monkeypatch.setattr(torch, "_int_mm", lambda a, b: (a.long() @ b.long()).int())
