"""The page on GPUs gives the ratios that the benchmarks recorded."""

import json
import re

import pytest

from course_pkg.experiments import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "book" / "appendix" / "gpu.md").read_text("utf-8")


def recorded(date, benchmark):
    """The recorded comparisons: what was compared, and the time of ours relative to it."""
    record = json.loads((RESULTS / f"{date}.json").read_text("utf-8"))
    assert record["machine"]["gpu"] == "NVIDIA H200"
    return {row["what"]: row["ratio"] for row in record["results"][benchmark]}


def cell(benchmark, other):
    """The last column of a row of the page's table."""
    row = re.search(rf"^\| {re.escape(benchmark)} \| {re.escape(other)} \| (.+) \|$", PAGE, re.M)
    return row[1]


@pytest.mark.parametrize(("part", "starts"), [("forward", "attention"), ("gradients", "its")])
def test_flash_attention(part, starts):
    rows = recorded("2026-11-27T121025Z", "flash_gpu")
    ratios = [ratio for what, ratio in rows.items() if what.startswith(starts)]
    assert len(ratios) == 20
    shown = cell(f"`flash_gpu`, {part}", "torch's flash backend, FlashAttention-2")
    assert shown == f"{min(ratios):.2f} to {max(ratios):.2f}"


@pytest.mark.parametrize(
    ("tokens", "theirs", "other"),
    [
        (1, "and float16", "product in float16"),
        (16, "and float16", "product in float16"),
        (256, "and float16", "product in float16"),
        (256, "and dequantizing first", "dequantizing first"),
    ],
)
def test_w4a16(tokens, theirs, other):
    rows = recorded("2026-11-27T122202Z", "w4a16_gpu")
    [ratio] = [
        ratio
        for what, ratio in rows.items()
        if what.startswith(f"W4A16, {tokens} ×") and f"{theirs}, median" in what
    ]
    plural = "" if tokens == 1 else "s"
    shown = cell(f"`w4a16_gpu`, {tokens} token{plural}", other)
    assert shown == f"{ratio:.2f}"


@pytest.mark.parametrize("name", ["generate`, one batch", "generate_batch`"])
def test_engine(name):
    theirs = f"transformers' {name.replace('`', '')}"
    with_flash_attn, without = (
        next(ratio for what, ratio in recorded(date, "engine_gpu").items() if what.endswith(theirs))
        for date in ("2026-11-27T124730Z", "2026-11-27T122501Z")
    )
    assert cell("`engine_gpu`", f"transformers' `{name}") == f"{with_flash_attn:.2f}"
    assert f"without flash-attn, both ratios were {without:.2f}." in PAGE
