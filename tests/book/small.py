"""A small book with the course's settings and extensions: pages that use everything there is."""

import shutil
from pathlib import Path

import lab_pages
import yaml

from tests.book.support import EXTENSIONS, HEADER, ROOT

SUMS = '''"""Sums of numbers, as `sum` makes them.

.. math:: total = x_1 + x_2
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Total:
    """A sum with its parts.

    Attributes:
        parts: The numbers, (n,) of them.
        scale: A factor on the `sum_of_parts`.
        offset: What is added.

    Raises:
        ValueError: There are no parts.

    Example:

        >>> Total((1, 2)).mean
        1.5
    """

    parts: tuple[float, ...]
    scale: float = 1.0
    offset: "torch.Tensor | None" = None

    @property
    def mean(self) -> float:
        """The sum over the count."""
        return self.scale * sum(self.parts) / len(self.parts)


def joined(total: Total, device: torch.device) -> torch.Tensor:
    """The parts as a tensor."""
    return torch.tensor(total.parts, device=device)
'''

SAMPLE = r"""
(doc1-2.1)=
(doc1-formula-1)=
# A sample of everything

(here)=
Inline $a^2 + b^2 = c^2$, and the answer {glue:text}`answer:.2f` of the word {glue:text}`word`.

$$
\mathcal L = -\sum_t \ln p_\theta(x_t \mid x_{<t}), \qquad W' = W + \frac{\alpha}{r} B A
$$ (eq-sample)

See {eq}`eq-sample` and {ref}`the start <here>`. From a paper: {cite:p}`hu2022lora`.

```{note}
A note, with {doc}`a page <index>`.
```

```{literalinclude} ../course_pkg/__init__.py
:pyobject: twice
```

```{glossary}
perplexity
  A measure of surprise.
```

| a | b |
|---|---|
| longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglong | x |

```{code-cell} ipython3
from myst_nb import glue
from course_pkg.sums import Total
print("total", Total((1, 2)).mean)
glue("answer", 41.9999, display=False)
glue("word", "hello", display=False)
```

```{code-cell} ipython3
---
tags: [hide-input]
mystnb:
  image:
    alt: A line that rises.
---
import matplotlib.pyplot as plt
plt.plot([1, 2, 3]);
```

```{code-cell} ipython3
from course_pkg.pages.slider import slider
figures = {}
for n in (1, 2):
    figures[n], axes = plt.subplots(figsize=(4, 2))
    axes.plot([0, n], color="0.5")
slider(figures, "n", "A line to n.")
```

```{figure} _static/figures/chapters.svg
:alt: Boxes and arrows.

A drawing.
```

```{code-cell} ipython3
from jupyterquiz import display_quiz
display_quiz([{"question": r"What is \(1 + 1\)?", "type": "multiple_choice", "answers": [
    {"answer": "2", "correct": True, "feedback": "Yes."},
    {"answer": "3", "correct": False, "feedback": "No."}]}])
```

```{bibliography}
```
"""


def page(title: str, code: str) -> str:
    """A page with one code cell."""
    return f"{HEADER}# {title}\n\n```{{code-cell}} ipython3\n{code}\n```\n"


DOCUMENTS = """
[[document]]
number = 1
title = "例子"
english = "A sample"
items = [
  { id = "2.1", kind = "section", number = "2.1", title = "例子", english = "A sample" },
  { id = "formula-1", kind = "formula", number = "Formula 1", title = "", english = "A loss" },
  { id = "2.2", kind = "section", number = "2.2", title = "", english = "X", left_out = "None." },
]
"""

PAGES = {
    "index": "# Start\n\n```{course-contents}\n```\n\n```{source-document} 1\n```\n",
    "sample": HEADER + SAMPLE,
    "api": "# Code\n\n```{eval-rst}\n.. package:: course_pkg\n```\n",
    "direct": page("Direct", 'from course_pkg.one import ONE\nprint("one is", ONE)'),
    "chained": page("Chained", 'from course_pkg import chain\nprint("chain is", chain.value())'),
    "data": page("Data", 'from course_pkg.reader import read\nprint("data is", read())'),
    "other": page("Other", 'import course_pkg.two\nprint("two is", course_pkg.two.TWO)'),
}
MODULES = {
    "__init__": "def twice(x):\n    return 2 * x\n",
    "sums": SUMS,
    "one": "ONE = 1\n",
    "two": "TWO = 2\n",
    "chain": "def value():\n    from .one import ONE\n    return 10 * ONE\n",
    "reader": "from pathlib import Path\n\n\ndef read():\n"
    '    return (Path(__file__).parent / "data" / "words.txt").read_text()\n',
}


def put_labs(folder: Path) -> None:
    """Give the small book labs: files in place of what `make labs` builds."""
    place = folder / lab_pages.BUILT
    place.mkdir(parents=True)
    for name in (*lab_pages.SCRIPTS, "built.txt"):
        (place / name).write_text(f"// {name}\n")


def write(folder: Path, pages: dict[str, str] = PAGES) -> None:
    """Write the sources of the small book, with these pages, into an empty folder."""
    for name in ("_static", "_templates"):
        shutil.copytree(ROOT / "book" / name, folder / "book" / name)
    for name in ("book/matplotlibrc", "book/references.bib"):
        shutil.copy(ROOT / name, folder / name)
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    extensions = config["sphinx"]["local_extensions"]
    config["sphinx"]["local_extensions"] = {name: str(EXTENSIONS) for name in extensions}
    chapters = [{"file": f"book/{name}"} for name in pages if name != "index"]
    toc = {"format": "jb-book", "root": "book/index", "chapters": chapters}
    files = {"_config.yml": yaml.safe_dump(config), "_toc.yml": yaml.safe_dump(toc)}
    files |= {"requirements.txt": "torch==1\n", "course_pkg/data/words.txt": "first"}
    files["book/appendix/documents.toml"] = DOCUMENTS
    files |= {f"book/{name}.md": text for name, text in pages.items()}
    files |= {f"course_pkg/{name}.py": text for name, text in MODULES.items()}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
