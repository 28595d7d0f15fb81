"""Models by name: `load()` gives SmolLM2-135M-Instruct, from a pip package, with no network.

Names: "smollm2-135m" (135 million parameters, from the cache folder), "tiny" (a random model of two
layers, in milliseconds), the id of a model on the Hugging Face hub, or a folder that
`save_pretrained` wrote.
"""

import difflib
import os
import re
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from course_pkg.lm import smollm2
from course_pkg.lm.answer_end import stop_at_answer_end
from course_pkg.lm.model_errors import ModelError, OfflineError, UnknownModelError
from course_pkg.lm.model_folder import ADAPTER_CONFIG, CONFIG, check_files, check_folder
from course_pkg.lm.whole_model import read_model, read_tokenizer

NAMES = (smollm2.NAME, "tiny")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_TIMEOUT = 10.0  # seconds


class LoadedModel(NamedTuple):
    """A model and its tokenizer; unpacks as `model, tokenizer = load()`."""

    model: PreTrainedModel
    tokenizer: Tokenizer


def load(
    name: str | os.PathLike = smollm2.NAME,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> LoadedModel:
    """Return a causal language model, in evaluation mode, and its tokenizer.

    Its generation stops at its own end tokens, and where its chat template ends an answer.

    Args:
        name: "smollm2-135m", "tiny", a hub id such as "owner/model", or a folder.
        device: None means the CPU, "auto" means a GPU if there is one.
        seed: for the weights of "tiny".

    Raises:
        ModelError: what can't be loaded; the message has one line.

    >>> model, tokenizer = load("tiny")
    >>> tokenizer.decode(tokenizer("any text, 任何文字").input_ids)
    'any text, 任何文字'
    """
    check_dtype(dtype)
    name = _checked(name)
    target = pick_device(device)
    if name == "tiny":
        from course_pkg.lm.tiny import tiny_model, tiny_tokenizer

        model = tiny_model(seed).to(dtype)
        tokenizer = tiny_tokenizer()
    elif name == smollm2.NAME:
        model, tokenizer = _from_folder(smollm2.prepare(), dtype)
    elif name and (folder := Path(name).expanduser()).is_dir():
        model, tokenizer = _from_folder(folder, dtype)
    elif HUB_ID.fullmatch(name):
        model, tokenizer = _from_hub(name, dtype)
    else:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f' (did you mean "{close[0]}"?)' if close else ""
        raise UnknownModelError(
            f'there is no model "{name}"{hint}: give one of {", ".join(NAMES)}, '
            'a hub id ("owner/model"), or a folder that exists'
        )
    stop_at_answer_end(model, tokenizer)
    return LoadedModel(model.to(target).eval(), tokenizer)


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """The tokenizer in a folder that `save_pretrained` wrote.

    >>> load_tokenizer("/nowhere")
    Traceback (most recent call last):
    ...
    course_pkg.lm.model_errors.ModelError: /nowhere has no tokenizer.json: save the tokenizer there
    """
    folder = Path(folder).expanduser()
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} has no tokenizer.json: save the tokenizer there")
    check_files(folder)
    try:
        with smollm2.quiet():
            return read_tokenizer(str(folder), local_files_only=True)
    except Exception as error:
        raise ModelError(
            f"the tokenizer in {folder} cannot be read ({first_line(error)}): save it again"
        ) from error


def prepare(name: str | os.PathLike = smollm2.NAME) -> Path | None:
    """Make a model ready for use without a network; return its folder, None for "tiny"."""
    name = _checked(name)
    if name == "tiny":
        return None
    if name == smollm2.NAME:
        return smollm2.prepare()
    load(name)
    if (folder := Path(name).expanduser()).is_dir():
        return folder.absolute()
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, local_files_only=True))


def pick_device(device: str | torch.device | None) -> torch.device:
    """The torch device for a name; None means the CPU, "auto" means a GPU if there is one."""
    if device is None:
        return torch.device("cpu")
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            f'device "{device}" cannot be used here ({first_line(error)}): use "cpu" or "auto"'
        ) from None
    return torch.device(device)


def stored_dtype(name: str) -> torch.dtype:
    """The type of the weights in a model's files, by its config; float32 if that says none.

    >>> stored_dtype("tiny")
    torch.float32
    """
    if name == "tiny":
        return torch.float32
    source = smollm2.prepare() if name == smollm2.NAME else Path(name).expanduser()
    try:
        source = source if Path(source).is_dir() else name
        own = AutoConfig.from_pretrained(source, trust_remote_code=False).dtype
    except (OSError, ValueError):  # which `load` explains
        own = None
    return own if isinstance(own, torch.dtype) else torch.float32


def check_dtype(dtype: torch.dtype) -> None:
    """Raise ValueError unless weights can have this type."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point torch dtype, got {dtype!r}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _from_folder(folder: Path, dtype: torch.dtype) -> LoadedModel:
    if (folder / ADAPTER_CONFIG).is_file():
        raise ModelError(
            f"{folder} has an adapter ({ADAPTER_CONFIG}): give its model here, and this folder as "
            "--adapter"
        )
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"{folder} has no {CONFIG}, so it is not a model: "
            "give a folder that save_pretrained wrote"
        )
    config = check_folder(folder)
    if "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING:
        raise ModelError(
            f"{folder} needs code of its own, which is not run here: give a model of a type that "
            "transformers knows"
        )
    try:
        return _read(str(folder), dtype, local_files_only=True)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"the model or tokenizer in {folder} cannot be read ({first_line(error)}): "
            "save both there with save_pretrained"
        ) from error


def _from_hub(name: str, dtype: torch.dtype) -> LoadedModel:
    """A model from the hub: from the hub's cache on this disk, or else over the network."""
    try:
        return _read(name, dtype, local_files_only=True)
    except (OSError, ValueError):
        _check_hub(name)
    try:
        return _read(name, dtype, local_files_only=False)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{name} could not be loaded from the hub: {first_line(error)}") from error


def _check_hub(name: str) -> None:
    """Raise an error unless the hub answers within seconds that it has this model."""
    from huggingface_hub import HfApi
    from huggingface_hub import constants as hub
    from huggingface_hub.errors import RepositoryNotFoundError

    fix = f"connect to the network, give a local folder, or use one of {', '.join(NAMES)}"
    if hub.HF_HUB_OFFLINE:
        raise OfflineError(
            f"{name} is not on this disk, and HF_HUB_OFFLINE blocks access to the hub: {fix}"
        )
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except RepositoryNotFoundError:
        raise UnknownModelError(
            f"the hub has no model {name} that you may read: check the name, or log in to the hub"
        ) from None
    except Exception as error:
        raise OfflineError(
            f"{name} is not on this disk, and the hub {hub.ENDPOINT} does not answer "
            f"({first_line(error)}): {fix}"
        ) from error


def _read(name: str, dtype: torch.dtype, *, local_files_only: bool) -> LoadedModel:
    with smollm2.quiet():
        tokenizer = read_tokenizer(name, local_files_only=local_files_only)
        model = read_model(
            AutoModelForCausalLM, name, dtype=dtype, local_files_only=local_files_only
        )
    return LoadedModel(model, tokenizer)


def _checked(name: str | os.PathLike) -> str:
    if not isinstance(name, str | os.PathLike):
        raise TypeError(
            f"name must be a string or a path, got {name!r:.80}: give one of {', '.join(NAMES)}, "
            'a hub id ("owner/model"), or a folder'
        )
    return os.fspath(name)
