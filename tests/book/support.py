"""What the book's tests share: paths, a page header, a build, a page that uses everything."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "book" / "_ext"
sys.path.insert(0, str(EXTENSIONS))  # Sphinx finds the book's extensions there as well

HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  name: python3
  display_name: Python 3
---
"""


def build(folder: Path) -> str:
    """Build the book in a folder, warnings being errors; return what the build said."""
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command += ["build", ".", "-W", "-n", "--keep-going"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "JUPYTER_PREFER_ENV_PATH": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


MODULE = '''"""Sums of numbers, as `sum` makes them.

    total = x_1 + x_2

Chapter: sample.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Total:
    """A sum with its parts.

    parts: the numbers, (n,) of them; at least one_part.
    scale: a factor * on the sum_of_parts. offset: what is added.
    Raises ValueError if there are none.
    Source: arithmetic. Chapter: sample.

    >>> Total((1, 2)).mean
    1.5
    """

    parts: tuple[float, ...]
    scale: float = 1.0
    offset: "torch.Tensor | None" = None

    @property
    def mean(self) -> float:
        """The sum over the count. Chapter: sample, nowhere/planned."""
        return self.scale * sum(self.parts) / len(self.parts)


def joined(total: Total, device: torch.device) -> torch.Tensor:
    """The parts as a tensor. Chapter: sample."""
    return torch.tensor(total.parts, device=device)
'''

SAMPLE = (
    HEADER
    + r"""
# A sample of everything

(here)=
Inline $a^2 + b^2 = c^2$, and the answer {glue:text}`answer:.2f` of the word {glue:text}`word`.

$$
\mathcal L = -\sum_t \ln p_\theta(x_t \mid x_{<t}), \qquad W' = W + \frac{\alpha}{r} B A
$$ (eq-sample)

See {eq}`eq-sample` and {ref}`the start <here>`.

```{note}
A note, with {doc}`a page <index>`.
```

```{literalinclude} ../course_pkg/__init__.py
:pyobject: twice
```

```{code-cell} ipython3
from myst_nb import glue
from course_pkg.sums import Total
print("total", Total((1, 2)).mean)
glue("answer", 41.9999, display=False)
glue("word", "hello", display=False)
```

```{code-cell} ipython3
---
mystnb:
  image:
    alt: A line that rises.
---
import matplotlib.pyplot as plt
plt.plot([1, 2, 3]);
```

```{code-cell} ipython3
from jupyterquiz import display_quiz
display_quiz([{"question": r"What is \(1 + 1\)?", "type": "multiple_choice", "answers": [
    {"answer": "2", "correct": True, "feedback": "Yes."},
    {"answer": "3", "correct": False, "feedback": "No."}]}])
```
"""
)
