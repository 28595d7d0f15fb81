"""A table of benchmarks that a reader sorts and filters, without a kernel and without a network.

course_pkg/data/public_sets/benchmarks.toml says where each number comes from.
"""

import html
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from course_pkg.common.arguments import require_integer, require_string

FILE = Path(__file__).parents[2] / "data" / "public_sets" / "benchmarks.toml"
CHECKED = {
    "paper": "with the paper",
    "abstract": "with the abstract",
    "release": "with the release",
    "": "not checked",
}
COLUMNS = {
    "name": "Benchmark",
    "area": "Area",
    "asks": "Asks for",
    "size": "Size",
    "metric": "Metric",
    "language": "Language",
    "license": "License",
    "source": "Source",
    "checked": "Size compared",
}
STYLE = """
.benchmarks{container-type:inline-size}
.benchmarks .control{display:flex;flex-wrap:wrap;gap:.4em 1em;align-items:center;margin:.5em 0}
.benchmarks input{flex:0 1 16em;padding:.3em .5em;border:1px solid #767676;border-radius:6px}
.benchmarks input{background:none;color:inherit;font:inherit}
.benchmarks .scroll{overflow-x:auto}
.benchmarks table{border-collapse:collapse;font-size:.85em;color:inherit;width:100%}
.benchmarks th,.benchmarks td{padding:.35em .5em;border-bottom:1px solid #767676}
.benchmarks th,.benchmarks td{text-align:left;vertical-align:top}
.benchmarks button{border:0;padding:.2em 0;background:none;color:inherit;font:inherit}
.benchmarks button{font-weight:600;text-align:left;cursor:pointer}
.benchmarks [aria-sort=ascending] button::after{content:" \\25B2" / ""}
.benchmarks [aria-sort=descending] button::after{content:" \\25BC" / ""}
@container (max-width:40rem){
.benchmarks table,.benchmarks thead,.benchmarks tbody,.benchmarks tr,.benchmarks td{display:block}
.benchmarks thead tr{display:flex;flex-wrap:wrap;gap:.2em .9em}
.benchmarks thead th,.benchmarks td{border:0}
.benchmarks thead th{padding:0}
.benchmarks thead button{padding:.5em 0}
.benchmarks tbody th{display:block;border:0;font-size:1.1em}
.benchmarks tbody tr{border-top:1px solid #767676;padding:.5em 0}
.benchmarks tr[hidden]{display:none}
.benchmarks td{padding:.1em .5em}
.benchmarks td::before{content:attr(data-label) ": ";font-weight:600}
}
@media print{.benchmarks .control{display:none}}
"""
# Rows without a key come last in both directions.
SORT = (
    "var h=this.closest('th'),t=h.closest('table'),n=h.cellIndex,"
    "d=h.getAttribute('aria-sort')=='ascending'?-1:1,"
    "k=function(r){return r.cells[n].dataset.key};"
    "t.querySelectorAll('thead th').forEach(function(e){e.removeAttribute('aria-sort')});"
    "h.setAttribute('aria-sort',d>0?'ascending':'descending');"
    "Array.from(t.tBodies[0].rows).sort(function(a,b){a=k(a);b=k(b);"
    "return (a=='')-(b=='')||d*a.localeCompare(b,'en',{numeric:true})"
    "}).forEach(function(r){t.tBodies[0].append(r)})"
)
FILTER = (
    "var w=this.value.toLowerCase().split(/\\s+/),s=this.closest('.benchmarks'),c=0,"
    "r=s.querySelectorAll('tbody tr');r.forEach(function(e){"
    "var x=e.textContent.toLowerCase();e.hidden=!w.every(function(v){return x.includes(v)});"
    "c+=!e.hidden});s.querySelector('output').textContent=c+' of '+r.length+' benchmarks'"
)


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark asks for, how large it is, and where that is written.

    Attributes:
        checked: what the size was compared with, a key of CHECKED.
        items: how many items are evaluated, for sorting; None if they are generated.
    """

    name: str
    area: str
    asks: str
    size: str
    metric: str
    language: str
    license: str
    source: str
    checked: str
    items: int | None = None


@dataclass(frozen=True)
class BenchmarkTable:
    """Rows as HTML; Jupyter shows it by `_repr_html_`."""

    rows: tuple[Benchmark, ...]

    def _repr_html_(self) -> str:
        button = f'<button type="button" onclick="{html.escape(SORT)}">'
        headings = ""
        for title in COLUMNS.values():
            headings += f'<th scope="col" role="columnheader">{button}{title}</button></th>'
        body = ""
        for row in self.rows:
            cells = "".join(_cell(row, column) for column in COLUMNS)
            body += f'<tr role="row">{cells}</tr>'
        count = len(self.rows)
        return (
            f'<div class="benchmarks"><style>{STYLE}</style>'
            "<noscript><style>.benchmarks .control{display:none}</style></noscript>"
            '<div class="control"><label>Show rows with '
            f'<input type="search" oninput="{html.escape(FILTER)}"></label>'
            f'<output aria-live="polite">{count} of {count} benchmarks</output></div>'
            '<div class="scroll"><table role="table"><thead><tr role="row">'
            f"{headings}</tr></thead><tbody>{body}</tbody></table></div></div>"
        )


def load_benchmarks(path: Path = FILE) -> list[Benchmark]:
    """The benchmarks of a TOML file, in its order."""
    benchmarks: dict[str, Benchmark] = {}
    for record in tomllib.loads(path.read_text("utf-8"))["benchmark"]:
        name = record.get("name", "without a name")
        try:
            row = _benchmark(record)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path.name}, benchmark {name!r}: {error}") from None
        if name in benchmarks:
            raise ValueError(f"{path.name} has the benchmark {name!r} twice: rename or remove one")
        benchmarks[name] = row
    return list(benchmarks.values())


def benchmark_table(rows: Sequence[Benchmark]) -> BenchmarkTable:
    """The rows as a table that can be sorted by any column and filtered by words."""
    if not rows:
        raise ValueError("rows is empty: give at least one benchmark, see load_benchmarks()")
    for row in rows:
        if not isinstance(row, Benchmark):
            raise TypeError(f"rows must be Benchmarks, got {row!r:.80}: call load_benchmarks()")
    return BenchmarkTable(tuple(rows))


def _benchmark(record: dict) -> Benchmark:
    required = {field.name for field in fields(Benchmark)} - {"items"}
    if wrong := required.symmetric_difference(record.keys() - {"items"}):
        raise ValueError(f"these fields are missing or unknown: {', '.join(sorted(wrong))}")
    for name in required:
        text = require_string(record[name], name)
        if not text.strip() and name not in ("license", "checked"):
            raise ValueError(f"{name} is empty: write a text")
    if "items" in record:
        require_integer(record["items"], "items")
    if record["checked"] not in CHECKED:
        raise ValueError(f"checked must be one of {list(CHECKED)}, got {record['checked']!r}")
    return Benchmark(**record)


def _cell(row: Benchmark, column: str) -> str:
    """One cell: what is shown, and the key by which the column is sorted."""
    text = key = getattr(row, column)
    if column == "size":
        key = "" if row.items is None else str(row.items)
    elif column == "source":
        key = " ".join([*re.findall(r"\d{4}", text), text])  # by year
    elif column == "license":
        text = text or "not found"
    elif column == "checked":
        text = CHECKED[text]
    shown = html.escape(text)
    if column == "name":
        return f'<th scope="row" role="rowheader" data-key="{html.escape(key)}">{shown}</th>'
    label = html.escape(COLUMNS[column])
    return f'<td role="cell" data-label="{label}" data-key="{html.escape(key)}">{shown}</td>'
