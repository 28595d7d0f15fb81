"""Playgrounds: a form, and what course_pkg computes from it, shown at once. One module for each."""

from importlib import import_module

from course_pkg.common.arguments import require_choice
from course_pkg.pages.labs.playgrounds.playground import Playground

MODULES = {  # by the playground's name in links
    "bleu": "ngram_matches",
    "rouge": "rouge",
    "perplexity": "perplexity",
    "tokenizer": "tokenizer",
    "blocks": "blocks",
    "scheduler": "request_timeline",
    "pass-at-k": "pass_at_k",
    "quantization": "quantization",
    "automaton": "next_bytes",
    "ring": "ring",
}


def playground(name: str) -> Playground:
    """The playground of that name. Raises ValueError for another name."""
    module = MODULES[require_choice(name, "playground", MODULES)]
    return import_module(f"course_pkg.pages.labs.playgrounds.{module}").PLAYGROUND
