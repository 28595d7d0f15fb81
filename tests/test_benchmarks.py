"""The program that runs the benchmarks; each benchmark itself runs with `make bench`."""

import importlib
import inspect
import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as program
from benchmarks import bench_flash_gpu, bench_w4a16_gpu, compare
from benchmarks.compare import Comparison, NotMeasured

NAMES = sorted(path.stem for path in program.HERE.glob("bench_*.py"))
FAST = Comparison("adding, ours and theirs", "ms", 1.0, 2.0, 0.5, 1.0)
SLOW = Comparison("sorting, ours and theirs", "ms", 3.0, 2.0, 1.5, 1.0)


def test_each_benchmark_yields_a_figure_when_it_is_measured():
    assert "bench_bleu" in NAMES
    for name in NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        assert inspect.isgeneratorfunction(module.measure), name


@pytest.mark.parametrize(
    ("gpu", "installed", "interpreted", "reason"),
    [
        (False, True, False, "needs a GPU"),
        (True, False, False, "needs triton"),
        (True, True, True, "triton is set to interpret"),
    ],
)
def test_a_benchmark_of_kernels_says_what_it_lacks(
    gpu, installed, interpreted, reason, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(compare, "INSTALLED", installed)
    monkeypatch.setattr(compare, "INTERPRETED", interpreted)
    for module in (bench_flash_gpu, bench_w4a16_gpu):
        [figure] = module.measure()
        assert isinstance(figure, NotMeasured) and figure.reason.startswith(reason)


@pytest.mark.parametrize(
    ("figures", "code"),
    [
        ([FAST, SLOW, NotMeasured("kernels", "needs a GPU")], 0),
        ([FAST, KeyboardInterrupt()], 130),
    ],
)
def test_figures_are_printed_and_recorded_as_they_come(
    tmp_path, monkeypatch, capsys, figures, code
):
    """A machine that misses a limit is no fault: the last lines name it."""
    printed = []

    def measure():
        for figure in figures:
            if isinstance(figure, BaseException):
                raise figure
            yield figure
            printed.append(capsys.readouterr().out)

    module = importlib.import_module("benchmarks.bench_rouge")
    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(program, "HERE", tmp_path)
    (tmp_path / "bench_rouge.py").touch()
    monkeypatch.setattr(sys, "argv", ["benchmarks", "rouge"])
    assert program.main() == code
    last = capsys.readouterr().out
    assert (f"limit missed: {SLOW.what}" in last) is (SLOW in figures)
    whole = [figure for figure in figures if not isinstance(figure, BaseException)]
    assert all(figure.what in text for figure, text in zip(whole, printed, strict=True))
    [record] = Path(tmp_path, "results").glob("*.json")
    measured = json.loads(record.read_text("utf-8"))["results"]["rouge"]
    assert [each["what"] for each in measured] == [figure.what for figure in whole]
