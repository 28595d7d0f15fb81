"""Texts to token ids in threads of their own; texts that are too long are found before that.

A long text takes long enough to hold up the event loop, so encoding has threads, each with a copy
of the tokenizer. Long texts have a thread of their own, so that short ones never wait for them.
Chapter: deployment/server.
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
_ASCII = (ascii_letters, digits, punctuation, whitespace)
_KINDS = [frozenset(kind.encode()) for kind in _ASCII] + [frozenset(range(128, 256))]


class TokenBound:
    """A lower bound of the number of tokens that a text has, found without encoding it.

    No token has more letters (or digits, …) than the one that has the most. So a text of n letters
    needs at least n divided by that. This holds for byte-level BPE, in which each byte of a text
    belongs to one token; for other tokenizers, the bound is 0.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> TokenBound(tiny_tokenizer())("a text" * 100)  # one token covers at most one space
    100
    """

    def __init__(self, tokenizer: Tokenizer):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._kinds: list[tuple[bytes, int]] = []  # the bytes not counted; the most in one token
        if backend is None:
            return
        described = json.loads(backend.to_str())
        normalizer = described["normalizer"]
        before = described["pre_tokenizer"] or {}
        parts = before.get("pretokenizers", [before])
        symbols = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        vocabulary = tokenizer.get_vocab()
        added = [each["content"] for each in described["added_tokens"]]
        sound = (
            described["model"]["type"] == "BPE"
            and any(part.get("type") == "ByteLevel" for part in parts)
            and (normalizer is None or normalizer["type"] == "NFC")
            and not any(each["lstrip"] or each["rstrip"] for each in described["added_tokens"])
        )
        if not sound:
            return
        self._ascii_only = normalizer is not None  # which NFC leaves as it is
        raw = [bytes(symbols[s] for s in token) for token in vocabulary.keys() - set(added)]
        raw += [content.encode() for content in added]
        known = {byte for symbol, byte in symbols.items() if symbol in vocabulary}
        for kind in _KINDS:
            others = bytes(byte for byte in range(256) if byte not in kind & known)
            if most := max(len(token.translate(None, others)) for token in raw):
                self._kinds.append((others, most))

    def __call__(self, text: str) -> int:
        """The bound for this text."""
        if not self._kinds or (self._ascii_only and not text.isascii()):
            return 0
        raw = text.encode("utf-8", "replace")
        return max(-(-len(raw.translate(None, others)) // most) for others, most in self._kinds)


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
        """End the threads when they have done what was asked."""
        for thread, _ in (self._short, self._long):
            thread.shutdown(wait=False)
