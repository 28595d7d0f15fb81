"""What each page took when its outputs were made, shown at its foot.

A last cell is added to every page that runs, as the page is read. It measures the kernel: seconds
since it started, CPU seconds, and the most memory it held. Then it measures how fast the machine
is at that moment, by a product of matrices, because a virtual machine may run at half its speed
for a while. Its output is cached with the page's own outputs, so a page that comes from the cache
shows the figures of the run that made it. The downloadable notebook does not have this cell. All
figures of a site are in its `page-costs.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from execution import path_of
from faults import guarded
from rerun import page_code
from shortcuts import merge_from
from sphinx.application import Sphinx

TAG = "page-cost"
RECORD = "page-costs.json"
# Peak memory: Linux's ru_maxrss begins with that of the parent process, VmHWM does not.
MEASURE = """
def _page_cost():
    import os, re, resource, sys, time
    from pathlib import Path

    import numpy as np
    import psutil
    from IPython.display import display

    status = Path("/proc/self/status")
    if status.is_file():
        peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch, gpu, gpu_bytes = sys.modules.get("torch"), "", 0
    if torch is not None and torch.cuda.is_initialized():
        gpu, gpu_bytes = torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = {
        "seconds": time.time() - psutil.Process().create_time(),
        "cpu_seconds": time.process_time() + children.ru_utime + children.ru_stime,
        "bytes": peak,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "gpu": gpu,
        "gpu_bytes": gpu_bytes,
    }
    a, b = np.ones((512, 1024), np.float32), np.ones((1024, 1024), np.float32)
    times = []
    for _ in range(15):
        started = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - started)
    cost["gflops"] = 2 * a.size * len(b) / sorted(times)[7] / 1e9
    display({"application/json": cost}, raw=True)

_page_cost()
"""


@guarded
def add_cell(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the cell that measures, to a page that has cells."""
    if page_code(source[0]):
        options = ":tags: [remove-cell]"
        source[0] += f"\n\n```{{code-cell}} ipython3\n{options}\n{MEASURE.strip()}\n```\n"


def is_measuring(cell: Any) -> bool:
    """Whether this is the cell that measures (tags don't come back from the cache)."""
    return cell.cell_type == "code" and cell.source.strip() == MEASURE.strip()


def cost_of(notebook: Any) -> dict | None:
    """The figures that the measuring cell of an executed notebook printed, or None."""
    for cell in notebook.cells:
        if is_measuring(cell):
            for output in cell.get("outputs", ()):
                if figures := output.get("data", {}).get("application/json"):
                    return dict(figures)
    return None


def in_words(cost: dict) -> str:
    """One line for the page.

    >>> in_words({"seconds": 160.2, "bytes": 2.34e9, "threads": 2, "gpu": "", "gpu_bytes": 0})
    '2 min 40 s on 2 CPU cores, 2.3 GB of memory, no GPU'
    >>> in_words({"seconds": 8.4, "bytes": 3e8, "threads": 1, "gpu": "an H200", "gpu_bytes": 3e9})
    '8 s on 1 CPU core, 300 MB of memory, 3.0 GB of an H200'
    """
    minutes, seconds = divmod(round(cost["seconds"]), 60)
    taken = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    cores = "1 CPU core" if cost["threads"] == 1 else f"{cost['threads']} CPU cores"
    large = cost["bytes"] > 1e9
    size = f"{cost['bytes'] / 1e9:.1f} GB" if large else f"{cost['bytes'] / 1e6:.0f} MB"
    gpu = f"{cost['gpu_bytes'] / 1e9:.1f} GB of {cost['gpu']}" if cost["gpu"] else "no GPU"
    return f"{taken} on {cores}, {size} of memory, {gpu}"


@guarded
def add_line(app: Sphinx, doctree: nodes.document) -> None:
    """Put the line at the page's foot, and keep the figures."""
    docname = app.env.docname
    executed = path_of(app, docname)
    section = doctree.next_node(nodes.section)
    if not executed.is_file() or section is None:
        return
    cost = cost_of(nbformat.read(executed, as_version=4))
    if cost is None:  # a page without cells, or one that did not run to its end
        return
    app.env.course_costs[docname] = cost
    line = nodes.paragraph(classes=[TAG])
    line += nodes.Text(
        f"Measured when this page was built, its libraries loaded: {in_words(cost)}."
    )
    section += line


def write_record(app: Sphinx, exception: Exception | None) -> None:
    """Leave the figures of all pages in the site."""
    if exception is None and app.builder.format == "html":
        record = dict(sorted(app.env.course_costs.items()))
        Path(app.outdir, RECORD).write_text(json.dumps(record, indent=1) + "\n", "utf8")


def prepare(app: Sphinx) -> None:
    if not hasattr(app.env, "course_costs"):
        app.env.course_costs = {}


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", prepare)
    app.connect("source-read", add_cell, priority=600)  # after rerun has looked at the page
    app.connect("doctree-read", add_line, priority=600)  # after the modules that the page uses
    app.connect("env-merge-info", merge_from("course_costs"))
    app.connect("env-purge-doc", lambda app, env, doc: env.course_costs.pop(doc, None))
    app.connect("build-finished", write_record)
    return {
        "version": "1",
        "env_version": 1,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
