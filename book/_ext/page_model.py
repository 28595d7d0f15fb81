"""The model that most pages load, loaded once in the process from which their kernels are forked.

Each kernel gives it out the first time that its page calls `load()`: a copy that the page may
change, because memory is copied where a fork writes. Whatever else the page loads, a second one
included, is read as usual. Nothing that a page shows changes: reading the model draws no random
number, and leaves no thread.

Importing this module loads the model, if it is prepared.
"""

from __future__ import annotations

from pathlib import Path

import torch

from course_pkg.lm import load as load_module
from course_pkg.lm import smollm2
from course_pkg.lm.load import LoadedModel
from course_pkg.lm.model_errors import ModelError


def loaded() -> tuple[Path, LoadedModel] | None:
    """The model and its folder; None if it is not prepared, or is damaged."""
    if smollm2.cache_state(deep=False).state != "valid":
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has none of the threads that would wait for work
    try:
        return smollm2.cached_folder(), load_module.load(smollm2.NAME)
    except ModelError:
        return None
    finally:
        torch.set_num_threads(threads)


MODEL = loaded()


def share() -> None:
    """In a kernel: have the first `load()` of the model return the one that is there."""
    if MODEL is None:
        return
    folder, model = MODEL
    read, prepare = load_module._from_folder, smollm2.prepare

    def from_folder(asked: Path, dtype: torch.dtype) -> LoadedModel:
        if asked != folder or dtype != torch.float32:
            return read(asked, dtype)
        load_module._from_folder = read
        return model

    def prepared() -> Path:
        smollm2.prepare = prepare
        return folder if smollm2.cached_folder() == folder else prepare()

    load_module._from_folder, smollm2.prepare = from_folder, prepared
