"""A model with its adapter merged, for programs that know no adapters."""

import os
from pathlib import Path

import torch
from transformers import PreTrainedModel

from course_pkg.adapters.injection import merge_adapters, remove_adapters
from course_pkg.adapters.methods import load as add_adapter
from course_pkg.adapters.own_tokenizer import own_tokenizer
from course_pkg.adapters.peft_files import CONFIG_FILE, read_settings
from course_pkg.adapters.prompt_io import PROMPT_TYPES
from course_pkg.lm.answer_end import stop_at_answer_end
from course_pkg.lm.load import LoadedModel, load
from course_pkg.lm.model_errors import ModelError

UNMERGEABLE = (*PROMPT_TYPES, "BOTTLENECK")


def load_merged(source: str | os.PathLike, base: str | os.PathLike | None = None) -> LoadedModel:
    """A model, fp32, with the adapter in a folder merged; or a model by name or folder, as it is.

    Its tokenizer is the adapter's own, if the folder has one.

    Args:
        source: a folder with an adapter in PEFT's format, or what `course_pkg.lm.load.load` takes.
        base: the adapter's model; by default the one that its file names.
    """
    folder = Path(source).expanduser()
    if not (folder / CONFIG_FILE).is_file():
        if base is not None:
            raise ModelError(
                f"{source} has no {CONFIG_FILE}, so it is not an adapter: leave --base out"
            )
        loaded = load(source)
        _refuse_quantized(loaded.model, source)
        return loaded
    try:
        settings = read_settings(folder)
    except ValueError as error:
        raise ModelError(str(error)) from None
    if settings["peft_type"] in UNMERGEABLE:
        raise ModelError(
            f"{folder} is of type {settings['peft_type']}, which can't be merged into the weights: "
            "use it with course_pkg or PEFT"
        )
    base = base or settings.get("base_model_name_or_path")
    if not base:
        raise ModelError(f"{folder} does not name its model: give it with --base")
    model, tokenizer = load(base)
    _refuse_quantized(model, base)
    try:
        tokenizer = own_tokenizer(folder, tokenizer, model.get_input_embeddings().num_embeddings)
        model = add_adapter(model, folder)
        merge_adapters(model)
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        raise ModelError(f"{folder} can't be merged into {base}: {error}") from None
    remove_adapters(model)
    untie_if_changed(model)
    stop_at_answer_end(model, tokenizer)
    return LoadedModel(model.eval(), tokenizer)


def _refuse_quantized(model: PreTrainedModel, name: str | os.PathLike) -> None:
    quantized = getattr(model.config, "quantization_config", None)
    if quantized is not None:
        method = getattr(quantized, "quant_method", "quantized")
        raise ModelError(
            f"the weights of {name} are quantized ({getattr(method, 'value', method)}): give the "
            "16-bit model that they were made from, for an adapter with --base"
        )


def untie_if_changed(model: PreTrainedModel) -> None:
    """Untie the output from the embeddings in the config if an adapter has changed one of them.

    A program that reads the config would otherwise use one for both.
    """
    output = model.get_output_embeddings()
    embeddings = model.get_input_embeddings()
    if output is not None and not torch.equal(output.weight, embeddings.weight):
        model.config.tie_word_embeddings = False
