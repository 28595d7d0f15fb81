"""A tokenizer as keys of a GGUF file: byte-level BPE, as in GPT-2, SmolLM2 and Llama 3.

llama.cpp knows the rules that cut a text into words by name only, so a rule that it lacks would
change the ids without an error. So would a normalizer, which the file can't describe. Both are
refused. Source: llama-vocab.cpp of llama.cpp, docs/gguf.md of ggml.
"""

import json
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.deployment.export.gguf_format import MetadataValue
from course_pkg.lm.answer_end import answer_end
from course_pkg.lm.model_errors import ModelError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # token types of llama.cpp
_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
# How the tokenizers library describes the rule → the name by which llama.cpp knows it.
PRE_TOKENIZERS = {
    "gpt-2": _WORDS,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _WORDS]},
}
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def tokenizer_metadata(tokenizer: Tokenizer, rows: int) -> dict[str, MetadataValue]:
    """The keys tokenizer.* of a tokenizer and its chat template.

    Args:
        rows: of the embedding matrix. llama.cpp needs a token for each, so unused ones are added.

    Raises:
        ModelError: for a tokenizer that llama.cpp can't have, or with more tokens than rows.
    """
    described = _described(tokenizer)
    pre = _pre_tokenizer(described)
    if len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} tokens, the model {rows} embeddings: "
            "give the tokenizer that belongs to the model"
        )
    tokens, types = _tokens(tokenizer, described, rows)
    merges = described["model"]["merges"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    begins, ends = _added(tokenizer)
    metadata = {
        "ggml.model": MetadataValue("STRING", "gpt2"),
        "ggml.pre": MetadataValue("STRING", pre),
        "ggml.tokens": MetadataValue("ARRAY", tokens, "STRING"),
        "ggml.token_type": MetadataValue("ARRAY", types, "INT32"),
        "ggml.merges": MetadataValue("ARRAY", merges, "STRING"),
        "ggml.add_space_prefix": MetadataValue("BOOL", False),
        "ggml.add_bos_token": MetadataValue("BOOL", begins),
        "ggml.add_eos_token": MetadataValue("BOOL", ends),
    }
    for ours, theirs in _SPECIAL.items():
        number = getattr(tokenizer, f"{ours}_token_id")
        if number is not None:
            metadata[f"ggml.{theirs}_token_id"] = MetadataValue("UINT32", number)
    end = answer_end(tokenizer)
    if end is not None and end != tokenizer.eos_token_id:
        metadata["ggml.eot_token_id"] = MetadataValue("UINT32", end)
    template = tokenizer.chat_template
    if template := template.get("default") if isinstance(template, dict) else template:
        metadata["chat_template"] = MetadataValue("STRING", template)
    return {f"tokenizer.{key}": value for key, value in metadata.items()}


def _described(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tokenizer.json says, if it is byte-level BPE."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described = json.loads(backend.to_str()) if backend is not None else {}
    model = described.get("model", {})
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        kind = model.get("type") or type(tokenizer).__name__
        raise ModelError(
            f"the tokenizer is {kind}, expected byte-level BPE: use llama.cpp's script"
        )
    if described["normalizer"] is not None or model.get("ignore_merges"):
        raise ModelError(
            "the tokenizer normalizes texts or ignores its merges, which a GGUF file of this kind "
            "cannot say: use llama.cpp's script"
        )
    return described


def _pre_tokenizer(described: dict[str, Any]) -> str:
    """The name of the rule; any rule will do for a tokenizer without merges."""
    rule = _without_offsets(described["pre_tokenizer"])
    for name, known in PRE_TOKENIZERS.items():
        if rule == known:
            return name
    if not described["model"]["merges"]:
        return "gpt-2"
    raise ModelError(
        f"the tokenizer splits words by {json.dumps(rule):.200}, expected the rule of one of "
        f"{', '.join(PRE_TOKENIZERS)}: use llama.cpp's script"
    )


def _without_offsets(rule: Any) -> Any:
    """The rule without `trim_offsets`, which doesn't change the ids."""
    if isinstance(rule, list):
        return [_without_offsets(part) for part in rule]
    if isinstance(rule, dict):
        return {k: _without_offsets(part) for k, part in rule.items() if k != "trim_offsets"}
    return rule


def _tokens(
    tokenizer: Tokenizer, described: dict[str, Any], rows: int
) -> tuple[list[str], list[int]]:
    added = {token["id"]: token["special"] for token in described["added_tokens"]}
    texts = {number: text for text, number in tokenizer.get_vocab().items()}
    tokens = []
    types = []
    for number in range(rows):
        tokens.append(texts.get(number, f"[PAD{number}]"))
        if number not in texts:
            types.append(UNUSED)
        elif number in added:
            types.append(CONTROL if added[number] else USER_DEFINED)
        else:
            types.append(NORMAL)
    return tokens, types


def _added(tokenizer: Tokenizer) -> tuple[bool, bool]:
    """Whether the tokenizer puts bos before a text, and eos after it."""
    plain = tokenizer("a", add_special_tokens=False).input_ids
    ids = tokenizer("a").input_ids
    bos, eos = [tokenizer.bos_token_id], [tokenizer.eos_token_id]
    if ids == plain:
        return False, False
    if ids == bos + plain:
        return True, False
    if ids == plain + eos:
        return False, True
    if ids == bos + plain + eos:
        return True, True
    raise ModelError(
        f"the tokenizer adds other special tokens than bos and eos to a text: {ids} for 'a'"
    )
