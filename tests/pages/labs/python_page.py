"""A page from disk in a browser without a network, with the labs' Python in it."""

import json
from pathlib import Path
from typing import Any

PAGE = """<!doctype html><meta charset="utf-8"><title>labs</title><body>
<script src="{labs}kit.js"></script><script src="{labs}python.js"></script>
<script src="{labs}package.js"></script>
<script>
const parts = {{ files: courseLabsFiles, course: courseLabsCourse }};
const python = new courseLabsKit.Python(async () => parts);
const runCells = async (cells, which) => {{
  const session = new courseLabsKit.Session(
    python, cells.map((cell) => ({{ ...cell, code: () => cell.code }})));
  await python.call("reset", {{}});
  const found = {{}};
  for (const id of which) {{
    const outputs = [];
    const result = await session.run(id, (output) => outputs.push(output));
    found[id] = {{ ...result, outputs }};
  }}
  return found;
}};
</script>"""


def write_page(site: Path, folder: Path) -> Path:
    path = folder / "python.html"
    path.write_text(PAGE.format(labs=f"file://{(site / '_static/labs').resolve()}/"), "utf-8")
    return path


def page_cells(path: Path) -> list[dict[str, Any]]:
    """What a page of the site has for the browser: its cells; empty if it has no lab."""
    text = path.read_text("utf-8")
    mark = '<script type="application/json" class="lab-cells">'
    if mark not in text:
        return []
    return json.loads(text.split(mark, 1)[1].split("</script>", 1)[0])["cells"]


def runnable(cells: list[dict[str, Any]]) -> list[int]:
    return [cell["id"] for cell in cells if cell["shown"] and not cell["missing"]]
