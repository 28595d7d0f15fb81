"""The tokenizer and the chat template that an adapter was trained with, if its folder has them.

A model that reads another template than it was trained with answers badly, without an error.
"""

import copy
import os
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.lm.load import load_tokenizer
from course_pkg.lm.model_errors import ModelError
from course_pkg.lm.model_folder import read_settings, regular_size

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = (TOKENIZER, "tokenizer.model", "vocab.json", "added_tokens.json")


def own_tokenizer(folder: str | os.PathLike, tokenizer: Tokenizer, rows: int) -> Tokenizer:
    """The adapter's tokenizer, with its chat template; the base's where the folder has none.

    A tokenizer with other ids for the base's tokens, or more tokens than the model has `rows` of
    embeddings, is a ValueError.
    """
    folder = Path(folder)
    try:
        if (folder / TOKENIZER).is_file():
            own = load_tokenizer(folder)
            _require_ids(own, tokenizer, rows, folder)
            own.chat_template = own.chat_template or tokenizer.chat_template
            return own
        if lone := [name for name in TOKENIZER_FILES if (folder / name).exists()]:
            raise ValueError(
                f"{folder} has {lone[0]} without {TOKENIZER}: save the tokenizer there"
            )
        template = own_template(folder)
    except ModelError as error:
        raise ValueError(str(error)) from None
    if template is None:
        return tokenizer
    own = copy.deepcopy(tokenizer)
    own.chat_template = template
    return own


def own_templates(
    adapters: Mapping[str, str | os.PathLike], tokenizer: Tokenizer, rows: int
) -> dict[str, str]:
    """The chat templates of the adapters that have another than the tokenizer's, by their names."""
    templates = {}
    for name, folder in adapters.items():
        own = own_tokenizer(folder, tokenizer, rows)
        if len(own) != len(tokenizer):
            raise ValueError(
                f"adapter {name!r} has {len(own) - len(tokenizer)} tokens of its own, which the "
                "model's other users lack: merge it (course export --format hf), and use that model"
            )
        if own.chat_template != tokenizer.chat_template:
            templates[name] = own.chat_template
    return templates


def own_template(folder: Path) -> str | None:
    """The chat template in an adapter's folder; None if there is none."""
    if (folder / TEMPLATE).exists():
        regular_size(folder / TEMPLATE)
        return (folder / TEMPLATE).read_text("utf-8")
    if not (folder / TOKENIZER_CONFIG).exists():
        return None
    template = read_settings(folder / TOKENIZER_CONFIG).get("chat_template")
    return template if isinstance(template, str) else None


def _require_ids(own: Tokenizer, base: Tokenizer, rows: int, folder: Path) -> None:
    ids = own.get_vocab()
    moved = [token for token, number in base.get_vocab().items() if ids.get(token) != number]
    if moved:
        raise ValueError(
            f"{folder} has a tokenizer with other ids than the model's, such as for {moved[0]!r}: "
            "give the model that it was trained on"
        )
    if max(ids.values()) >= rows:
        raise ValueError(
            f"{folder} has a tokenizer with {len(ids)} tokens, the model has {rows} embeddings: "
            "the adapter was trained with new tokens; merge it with the library that trained it, "
            "and give the merged model"
        )
