"""Texts to token ids in threads of their own; texts that are too long are found before that.

Encoding has two threads, each with a copy of the tokenizer: one for long texts, so that short ones
never wait for them.
"""

import asyncio
import copy
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from string import ascii_letters, digits, punctuation, whitespace
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.lm.tiny import byte_symbols

LONG = 1 << 15  # characters; they take about 20 ms
SENTENCEPIECE_SPACE = "\u2581"
_BYTE_TOKENS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
_ASCII = (ascii_letters, digits, punctuation, whitespace)
_KINDS = [frozenset(kind.encode()) for kind in _ASCII] + [frozenset(range(128, 256))]


class TokenBound:
    """A lower bound of the number of tokens that a text has, found without encoding it.

    No token has more letters (or digits, …) than the one that has the most. So a text of n letters
    needs at least n divided by that. This holds for BPE on bytes (GPT-2, Llama 3, Qwen) and BPE
    with a token for each byte (SentencePiece: Llama 2, Mistral), in which every byte belongs to one
    token; for other tokenizers, the bound is 0.
    """

    def __init__(self, tokenizer: Tokenizer):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        described = None if backend is None else json.loads(backend.to_str())
        # Other Unicode characters than ASCII may become fewer bytes in NFC.
        self._ascii_only = described is not None and _kind(described["normalizer"]) == "NFC"
        self._space = ""  # what is written for a space
        self._kinds: list[tuple[bytes, int]] = []  # the bytes not counted; the most in one token
        if described is None or described["model"]["type"] != "BPE":
            return
        added = described["added_tokens"]
        if any(token["lstrip"] or token["rstrip"] for token in added):
            return
        vocabulary = tokenizer.get_vocab().keys() - {token["content"] for token in added}
        if _is_byte_level(described):
            symbols = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
            raw = [bytes(symbols[s] for s in token) for token in vocabulary]
            known = {byte for symbol, byte in symbols.items() if symbol in vocabulary}
        elif _is_sentencepiece(described) and vocabulary >= _BYTE_TOKENS.keys():
            self._space = SENTENCEPIECE_SPACE
            words = vocabulary - _BYTE_TOKENS.keys()
            raw = [self._written(token) for token in words] + list(_BYTE_TOKENS.values())
            known = set(range(256))
        else:
            return
        raw += [self._written(token["content"]) for token in added]
        for kind in _KINDS:
            others = bytes(byte for byte in range(256) if byte not in kind & known)
            if most := max(len(token.translate(None, others)) for token in raw):
                self._kinds.append((others, most))

    def __call__(self, text: str) -> int:
        if not self._kinds or (self._ascii_only and not text.isascii()):
            return 0
        raw = self._written(text)
        return max(-(-len(raw.translate(None, others)) // most) for others, most in self._kinds)

    def _written(self, text: str) -> bytes:
        """Its bytes, the same whether spaces are written as such or as the tokenizer does."""
        text = text.replace(self._space, " ") if self._space else text
        return text.encode("utf-8", "replace")


def _is_byte_level(described: dict[str, Any]) -> bool:
    before = described["pre_tokenizer"] or {}
    parts = before.get("pretokenizers", [before])
    on_bytes = any(_kind(part) == "ByteLevel" for part in parts)
    return on_bytes and _kind(described["normalizer"]) in (None, "NFC")


def _is_sentencepiece(described: dict[str, Any]) -> bool:
    """Whether it is BPE that has tokens for single bytes, and only replaces or adds spaces."""
    normalizer = described["normalizer"]
    before = described["pre_tokenizer"]
    steps = normalizer["normalizers"] if _kind(normalizer) == "Sequence" else [normalizer]
    replaces = {"type": "Replace", "pattern": {"String": " "}, "content": SENTENCEPIECE_SPACE}
    harmless = all(_kind(step) in (None, "Prepend") or step == replaces for step in steps)
    split = _kind(before) is None or (
        _kind(before) == "Metaspace" and before["replacement"] == SENTENCEPIECE_SPACE
    )
    return bool(described["model"]["byte_fallback"]) and harmless and split


def _kind(part: dict[str, Any] | None) -> str | None:
    return None if part is None else part.get("type")


class TokenizerThreads:
    """Runs work that needs the tokenizer. check: called before it, raises if the server stops."""

    def __init__(self, tokenizer: Tokenizer, check: Callable[[], None]):
        self.least_tokens = TokenBound(tokenizer)
        self._check = check
        self._short, self._long = (
            (ThreadPoolExecutor(1, thread_name_prefix=name), copy.deepcopy(tokenizer))
            for name in ("tokenizer", "tokenizer-long")
        )

    async def run(self, work: Callable[[Tokenizer], Any], characters: int) -> Any:
        """The work's result. characters: of the texts in it."""
        thread, tokenizer = self._long if characters > LONG else self._short

        def unless_stopped() -> Any:
            self._check()  # again, because it may have waited
            return work(tokenizer)

        self._check()
        return await asyncio.get_running_loop().run_in_executor(thread, unless_stopped)

    def stop(self) -> None:
        for thread, _ in (self._short, self._long):
            thread.shutdown(wait=False)
