"""Run the benchmarks: `python -m benchmarks [NAME …]`, names without `bench_`, by default all.

Prints each figure when it is measured, and writes benchmarks/results/<UTC date and time>.json. The
last lines name the limits that were missed, and `make budgets` lists them too: a busy machine can
miss one. The exit code is 130 if the run is interrupted.
"""

import argparse
import importlib
import json
import platform
import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch
from rich.console import Console

from benchmarks.compare import Comparison, NotMeasured

HERE = Path(__file__).parent
PACKAGES = ("torch", "transformers", "peft", "trl", "bitsandbytes", "numpy", "sacrebleu")
PACKAGES += ("rouge_score", "bert-score", "triton", "flash-attn")


def main() -> int:
    """Measure, print and record; return the exit code."""
    available = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(available))
    names = parser.parse_args().names or available
    if unknown := sorted(set(names) - set(available)):
        parser.error(f"unknown: {', '.join(unknown)}; the benchmarks are: {', '.join(available)}")
    torch.set_num_threads(1)  # one thread gives steadier times than two
    console = Console()
    results = {}
    interrupted = False
    try:
        for name in names:
            module = importlib.import_module(f"benchmarks.bench_{name}")
            console.rule(f"[bold]{name}[/]: {module.__doc__.splitlines()[0]}", align="left")
            results[name] = []
            for comparison in module.measure():
                results[name].append(comparison)
                console.print(_line(comparison))
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; what was measured is recorded")
    measured = [comparison for part in results.values() for comparison in part]
    path = _record(results)
    missed = [comparison.what for comparison in measured if comparison.holds is False]
    print(f"written to {path}" + "".join(f"\nlimit missed: {what}" for what in missed))
    return 130 if interrupted else 0


def _line(comparison: Comparison | NotMeasured) -> str:
    """What is printed as soon as it is measured."""
    if isinstance(comparison, NotMeasured):
        return f"  {comparison.what}\n    not measured: {comparison.reason}"
    color = "green" if comparison.holds else "red"
    spread = ""
    if comparison.spread is not None:
        spread = "middle half {:.3f} to {:.3f}, ".format(*comparison.spread)
    return (
        f"  {comparison.what}\n    ours {comparison.ours:.1f} {comparison.unit}, "
        f"theirs {comparison.theirs:.1f}; ratio [{color}]{comparison.ratio:.3f}[/] "
        f"({spread}limit {comparison.limit:.2f})"
    )


def _record(results: dict) -> Path:
    now = datetime.now(UTC)
    record = {
        "date": now.isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "machine": _machine(),
        "versions": {"python": platform.python_version()} | _versions(),
        "results": {
            name: [{**asdict(c), "holds": c.holds} for c in part] for name, part in results.items()
        },
    }
    path = HERE / "results" / f"{now:%Y-%m-%dT%H%M%SZ}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _machine() -> dict:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": psutil.getloadavg()[0],
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


if __name__ == "__main__":
    sys.exit(main())
