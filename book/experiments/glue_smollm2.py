"""SmolLM2 on the course's items in the shapes of GLUE and SuperGLUE, by the words of the labels.

    python book/experiments/glue_smollm2.py            run what is missing of the record
    python book/experiments/glue_smollm2.py --confirm  after an edit: run one short row again

The model is SmolLM2-135M-Instruct in float32, the only version whose weights the course has. A row
is a shape of task, one of its two prompts, and 0 or 4 solved examples, the same for all items. It
has the log-probabilities of all labels' words (or of the item's own options) after the prompt with
the item's texts, and after the same prompt with "N/A" in place of the texts.
"""

from itertools import product

import numpy as np
from record import main

from course_pkg.lm.load import load
from course_pkg.pages.experiments import ROOT
from course_pkg.studies.benchmarks.label_scores import score_labels
from course_pkg.studies.benchmarks.suites import load_shape, shape_names

FOLDER = ROOT / "course_pkg/data"
DATA = sorted(
    path.relative_to(FOLDER).as_posix() for path in (FOLDER / "evaluation/suites").iterdir()
)
SHOTS = (0, 4)
PLAN = [
    {"shape": shape, "prompt": prompt, "shots": shots}
    for shape, prompt, shots in product(shape_names(), (0, 1), SHOTS)
]
PROBE = {"shape": "sentiment", "prompt": 1, "shots": 0}


def measure(loaded: tuple, key: dict) -> dict:
    """The log-probabilities of a row, for each item those of its options."""
    model, tokenizer = loaded
    shape = load_shape(key["shape"])
    examples = shape.examples[: key["shots"]]
    found = score_labels(model, tokenizer, shape.prompts[key["prompt"]], shape.items, examples)
    return {"given": present(found.given), "empty": present(found.empty)}


def present(scores: np.ndarray) -> list[list[float]]:
    """The finite scores of each item: an item with fewer options has fewer."""
    return [row[np.isfinite(row)].tolist() for row in scores]


if __name__ == "__main__":
    settings = {"model": "smollm2-135m", "shots": list(SHOTS)}
    main(
        __file__,
        PLAN,
        lambda: load("smollm2-135m"),
        measure,
        probe=PROBE,
        settings=settings,
        data=DATA,
    )
