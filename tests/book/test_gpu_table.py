"""The page on GPUs gives the ratios that the benchmarks recorded."""

import json
import re

from course_pkg.pages.experiments import ROOT

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


def test_flash_attention():
    rows = recorded("2026-11-27T121025Z", "flash_gpu")
    for part, starts in (("forward", "attention"), ("gradients", "its")):
        ratios = [ratio for what, ratio in rows.items() if what.startswith(starts)]
        assert len(ratios) == 20
        shown = cell(f"`flash_gpu`, {part}", "torch's flash backend, FlashAttention-2")
        assert shown == f"{min(ratios):.2f} to {max(ratios):.2f}"


def test_w4a16():
    rows = recorded("2026-11-27T122202Z", "w4a16_gpu")
    float16 = ("and float16", "product in float16")
    first = ("and dequantizing first", "dequantizing first")
    for tokens, (theirs, other) in ((1, float16), (16, float16), (256, float16), (256, first)):
        start, end = f"W4A16, {tokens} ×", f"{theirs}, median"
        [ratio] = [rows[what] for what in rows if what.startswith(start) and end in what]
        plural = "" if tokens == 1 else "s"
        assert cell(f"`w4a16_gpu`, {tokens} token{plural}", other) == f"{ratio:.2f}"


def test_engine():
    with_flash_attn, without = (
        recorded(date, "engine_gpu") for date in ("2026-11-27T124730Z", "2026-11-27T122501Z")
    )
    for name in ("generate`, one batch", "generate_batch`"):
        theirs = f"transformers' {name.replace('`', '')}"
        [what] = [what for what in with_flash_attn if what.endswith(theirs)]
        assert cell("`engine_gpu`", f"transformers' `{name}") == f"{with_flash_attn[what]:.2f}"
        said = f"without flash-attn, both ratios were {without[what]:.2f}."
        assert said in PAGE
