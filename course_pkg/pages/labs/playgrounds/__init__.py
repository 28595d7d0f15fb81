"""Playgrounds: a form, and what course_pkg computes from it, shown at once. One module for each."""

from importlib import import_module

from course_pkg.common.arguments import require_choice
from course_pkg.pages.labs.playgrounds.playground import Playground

NAMES = (
    "bleu",
    "rouge",
    "perplexity",
    "tokenizer",
    "blocks",
    "scheduler",
    "pass-at-k",
    "quantization",
    "automaton",
    "ring",
)


def playground(name: str) -> Playground:
    """The playground of that name. Raises ValueError for another name."""
    module = require_choice(name, "playground", NAMES).replace("-", "_")
    return import_module(f"course_pkg.pages.labs.playgrounds.{module}").PLAYGROUND
