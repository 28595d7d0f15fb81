"""The program that runs the benchmarks; each benchmark itself runs with `make bench`."""

import importlib
import inspect
import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks.compare import Comparison, NotMeasured

NAMES = sorted(path.stem for path in program.HERE.glob("bench_*.py"))
FAST = Comparison("adding, ours and theirs", "ms", 1.0, 2.0, 0.5, 1.0)
SLOW = Comparison("sorting, ours and theirs", "ms", 3.0, 2.0, 1.5, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_yields_a_figure_when_it_is_measured(name):
    assert inspect.isgeneratorfunction(importlib.import_module(f"benchmarks.{name}").measure)


@pytest.mark.parametrize(
    ("figures", "code"),
    [
        ([FAST], 0),
        ([FAST, SLOW], 1),
        ([NotMeasured("kernels", "needs a GPU")], 0),
        ([FAST, KeyboardInterrupt()], 130),
    ],
)
def test_figures_are_printed_and_recorded_as_they_come(
    tmp_path, monkeypatch, capsys, figures, code
):
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
    whole = [figure for figure in figures if not isinstance(figure, BaseException)]
    assert all(figure.what in text for figure, text in zip(whole, printed, strict=True))
    [record] = Path(tmp_path, "results").glob("*.json")
    measured = json.loads(record.read_text("utf-8"))["results"]["rouge"]
    assert [each["what"] for each in measured] == [figure.what for figure in whole]
