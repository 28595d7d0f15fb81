"""The bytes of a tokenizer's tokens, and a trie of them.

Byte-level tokenizers (GPT-2, SmolLM2, Llama 3) have a printable character for each byte: Ġ is a
space. Those of the SentencePiece family (Llama 2, Mistral) write ▁ for a space, and fall back to
tokens such as <0x0A>. A token may hold a part of a character, so constraints work on bytes.

Sources: Radford et al. (2019), section 2.2; Kudo and Richardson (2018), SentencePiece.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_list
from course_pkg.lm.tiny import byte_symbols

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "▁"  # SentencePiece's


@dataclass(frozen=True, eq=False)
class Trie:
    """The tokens as a tree of bytes. Node 0 is the root; a node's children have successive numbers.

    Attributes:
        byte: (nodes,), the byte that leads to each node.
        first_child: (nodes + 1,); node i has the children first_child[i] to first_child[i + 1] - 1.
        tokens, first_token: those that end at a node, in the same way; several tokens can have the
            same bytes.
    """

    byte: np.ndarray
    first_child: np.ndarray
    tokens: np.ndarray
    first_token: np.ndarray

    def find(self, data: bytes) -> int | None:
        """The node that these bytes lead to from the root."""
        node = 0
        for byte in data:
            first, end = self.first_child[node : node + 2].tolist()
            at = first + int(np.searchsorted(self.byte[first:end], byte))
            if at == end or self.byte[at] != byte:
                return None
            node = at
        return node

    def longest(self, data: bytes) -> int | None:
        """The longest token that the data begins with."""
        for size in range(len(data), 0, -1):
            node = self.find(data[:size])
            if node is not None and self.first_token[node] < self.first_token[node + 1]:
                return int(self.tokens[self.first_token[node]])
        return None


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What each token writes, and which tokens end the text.

    Attributes:
        tokens: for each id its bytes; None (or no bytes) for tokens that no constraint may use,
            such as special ones. A token without bytes would change nothing, forever.
        eos: ids that end a text, at least one.
        encode: a text's token ids as the model knows them, for forced text; the longest tokens that
            fit if left out.
    """

    tokens: Sequence[bytes | None]
    eos: Collection[int]
    encode: Callable[[str], list[int]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_list(self.tokens, "tokens", "give the bytes of each token")
        for number, token in enumerate(self.tokens):
            if token is not None and not isinstance(token, bytes):
                raise TypeError(f"token {number} must be bytes or None, got {token!r:.80}")
        known = range(len(self.tokens))
        if not self.eos or not all(token in known for token in self.eos):
            raise ValueError(
                f"eos is {list(self.eos)}: give at least one id from 0 to {len(self.tokens) - 1}; "
                "without an end token no constrained text can end"
            )
        object.__setattr__(self, "eos", frozenset(self.eos))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def trie(self) -> Trie:
        """The trie of all tokens that write something and don't end the text."""
        used = [
            (token, number)
            for number, token in enumerate(self.tokens)
            if token and number not in self.eos
        ]
        return _trie(sorted(used))

    def tokenize(self, data: bytes) -> list[int]:
        """Tokens that write these bytes, or their beginning if no token fits the rest.

        Example:

            >>> Vocabulary([b"ab", b"c", b"</s>"], eos=[2]).tokenize(b"cabx")
            [1, 0]
        """
        text = data.decode("utf-8", "ignore")
        if self.encode is not None and text.encode() == data:
            tokens = self.encode(text)
            if b"".join(self.tokens[token] or b"" for token in tokens) == data:
                return tokens
        tokens = []
        while data and (token := self.trie.longest(data)) is not None:
            tokens.append(token)
            data = data[len(self.tokens[token]) :]
        return tokens


def vocabulary_of(tokenizer: Tokenizer, eos: Collection[int] | None = None) -> Vocabulary:
    """The vocabulary of a transformers tokenizer, byte-level or of the SentencePiece family.

    Args:
        eos: ids that end a text; the tokenizer's if left out. A chat model's generation_config may
            have more of them.

    Raises:
        ValueError: for a tokenizer of another family, or without an end token.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described = json.loads(backend.to_str()) if backend is not None else {}
    spelled = _token_spelling(described, tokenizer)
    if eos is None:
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    special = set(tokenizer.all_special_ids)
    added = {}
    for token in described["added_tokens"]:
        added[token["id"]] = token["content"]
        if token["special"]:
            special.add(token["id"])
    texts = {number: text for text, number in tokenizer.get_vocab().items()}
    tokens: list[bytes | None] = [None] * (max(texts) + 1)
    for number, text in texts.items():
        if number in special:
            continue
        tokens[number] = text.encode() if number in added else spelled(text)

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    return Vocabulary(tokens, eos, encode)


def _token_spelling(
    described: dict[str, Any], tokenizer: Tokenizer
) -> Callable[[str], bytes | None]:
    """How this tokenizer writes bytes as characters: a function from a token to its bytes."""
    model = described.get("model", {})
    decoder = described.get("decoder") or {}
    steps = {step["type"] for step in decoder.get("decoders", [decoder]) if "type" in step}
    if "ByteLevel" in steps:
        byte_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}

        def byte_level(text: str) -> bytes | None:
            return bytes(byte_of[c] for c in text) if set(text) <= byte_of.keys() else None

        return byte_level
    if model.get("byte_fallback") or "ByteFallback" in steps:

        def sentence_piece(text: str) -> bytes:
            byte = BYTE_TOKEN.fullmatch(text)
            return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()

        return sentence_piece
    kind = model.get("type", type(tokenizer).__name__)
    raise ValueError(
        f"the tokenizer ({kind}) is neither byte-level nor of the SentencePiece family with byte "
        "fallback, so the bytes of its tokens are unknown: give a Vocabulary with them"
    )


def _trie(used: list[tuple[bytes, int]]) -> Trie:
    """The trie of (token, id) pairs, which are sorted."""
    byte = [0]
    first_child = []
    tokens = []
    first_token = []
    spans = [(0, len(used), 0)]  # of each node: its tokens in `used`, and its depth
    for start, end, depth in spans:  # which grows
        first_child.append(len(spans))
        first_token.append(len(tokens))
        while start < end and len(used[start][0]) == depth:
            tokens.append(used[start][1])
            start += 1
        while start < end:
            next_byte = used[start][0][depth]
            stop = start
            while stop < end and used[stop][0][depth] == next_byte:
                stop += 1
            byte.append(next_byte)
            spans.append((start, stop, depth + 1))
            start = stop
    first_child.append(len(spans))
    first_token.append(len(tokens))
    arrays = (np.array(numbers, np.int32) for numbers in (first_child, tokens, first_token))
    return Trie(np.array(byte, np.uint8), *arrays)
