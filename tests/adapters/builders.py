"""Adapted models for the tests of this folder, and changes to the files of adapters."""

import json

from course_pkg.adapters.injection import inject
from course_pkg.adapters.methods import load
from course_pkg.lm.load import load as load_model
from tests.parity.small_models import shaken

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def build():
    """A new random Llama of two layers; it ties its output head to the embedding."""
    return load_model("tiny").model


def adapted(config, name="default", seed=1):
    """A model whose adapter has an effect."""
    model = build()
    inject(model, config, name)
    return shaken(model, seed)


def loaded(folder):
    return load(build(), folder)


def edit_config(folder, **changes):
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
