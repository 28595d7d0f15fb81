"""A model and its tokenizer by transformers: whole, and without running code that lies beside them.

transformers gives random numbers to tensors that the files lack, leaves out those that it has no
place for, and mentions both in a log. Here each is an error that names the tensor.
"""

import os
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.lm.model_errors import CorruptModelError, ModelError
from course_pkg.lm.pretrained import listed, refuse_adapters

# What old programs stored although it follows from the config.
DERIVED = ("rotary_emb.inv_freq", ".masked_bias")


def read_model(
    kind: Any, source: str | os.PathLike, *, headless: bool = False, **options: Any
) -> PreTrainedModel:
    """The model in a folder or on the hub, with exactly the tensors of its files.

    Args:
        kind: a class of transformers with `from_pretrained`, which gets the options.
        headless: heads that are stored may be left out, and the pooler, which no hidden state
            depends on, may be absent.
    """
    model, loading = kind.from_pretrained(
        source,
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # else the error names no tensor
        **options,
    )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(
            f"{source} has an adapter: give its model here, and the adapter's folder as --adapter"
        )
    missing, unknown = loading["missing_keys"], loading["unexpected_keys"]
    unknown = {name for name in unknown if not name.endswith(DERIVED)}
    if headless:
        missing = {name for name in missing if not name.startswith("pooler.")}
        unknown = unknown if missing else set()
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    refuse_adapters(sorted(unknown), tied=tied)
    if problem := _problem(missing, unknown, loading["mismatched_keys"]):
        raise CorruptModelError(
            f"the weights in {source} are not those of its config.json: {problem}; save the whole "
            "model there again"
        )
    return model


def read_tokenizer(source: str | os.PathLike, **options: Any) -> Tokenizer:
    """The tokenizer in a folder or on the hub. Raises what transformers raises."""
    return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)


def _problem(missing: set[str], unknown: set[str], misfits: Any) -> str:
    """What is missing, unknown or of another shape; empty if nothing is."""
    problems = []
    if missing:
        problems.append(f"they lack {listed(sorted(missing), 'tensor')}")
    if unknown:
        problems.append(f"the model has no {listed(sorted(unknown), 'tensor')}")
    for name, stored, wanted in sorted(misfits)[:1]:
        problems.append(f"{name} has shape {tuple(stored)}, expected {tuple(wanted)}")
    return "; ".join(problems)
