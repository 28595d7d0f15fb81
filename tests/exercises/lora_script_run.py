"""Adapters for the tests of `lora-script`: trained by the notebook's script, or written at once.

Both can be changed: the script in its text, an adapter in its files.
"""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load, save

from course_pkg.grading.assignments.lora_script.submitted_adapter import expected_shapes
from course_pkg.grading.questions.calling import read_folder
from tests.exercises.assignments import SOLUTIONS, notebook

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
REPORT = "report.json"
Files = dict[str, bytes]
Change = Callable[[Files], Files]


def run_script(folder: Path, *changes: tuple[str, str]) -> dict[str, bytes]:
    """The files of the adapter that the notebook's solution writes.

    folder: where it runs. changes: pairs of a text that the script has once, and another.
    """
    cells = [c.source for c in notebook(SOLUTIONS, "lora-script").cells if c.cell_type == "code"]
    code = "\n".join(cell for cell in cells if "check(" not in cell)
    for old, new in changes:
        assert code.count(old) == 1, (old, code.count(old))
        code = code.replace(old, new)
    names = {"__name__": "notebook"}
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)
        return read_folder(names["folder"], most=10_000_000)


def plain_files() -> Files:
    """The files of an adapter as asked for, with random numbers."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(shape, generator=generator) for name, shape in expected_shapes().items()
    }
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"]}
    report = {"held_out_loss": 0.1, "exact_match": 1.0}
    return {CONFIG: as_json(config), WEIGHTS: save(tensors), REPORT: as_json(report)}


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def configured(**settings: object) -> Change:
    return lambda files: files | {CONFIG: as_json(json.loads(files[CONFIG]) | settings)}


def reported(**numbers: object) -> Change:
    return lambda files: files | {REPORT: as_json(json.loads(files[REPORT]) | numbers)}


def tensors(change: Callable[[str, torch.Tensor], dict[str, torch.Tensor]]) -> Change:
    """A change of the tensors: change(name, tensor) gives the new ones by name."""

    def changed(files: Files) -> Files:
        by_name = load(files[WEIGHTS])
        new = [item for name, tensor in by_name.items() for item in change(name, tensor).items()]
        return files | {WEIGHTS: save({name: t.contiguous() for name, t in new})}

    return changed
