"""Responses: what the engine generated, in the objects of OpenAI's API, whole or as events.

A stream is server-sent events: lines `data: {…}` with an empty line after each, the last one
`data: [DONE]`.
"""

import json
import time
import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.deployment.engine_thread import Call
from course_pkg.deployment.schemas import GenerationRequest
from course_pkg.lm.tiny import byte_symbols
from course_pkg.serving.request import Chunk
from course_pkg.serving.sampling import LogProb
from course_pkg.serving.text_stream import REPLACEMENT

LEAST_LOGPROB = -9999.0  # JSON has no infinity
DONE = b"data: [DONE]\n\n"


class TokenTexts:
    """The text and the bytes of single tokens; some tokens are parts of a character."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._bytes = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        self._cached = lru_cache(65536)(self._find)

    def __call__(self, token: int) -> tuple[str, bytes]:
        """Its text, or "bytes:\\x…" if its bytes are no text; and its bytes."""
        return self._cached(token)

    def _find(self, token: int) -> tuple[str, bytes]:
        text = self.tokenizer.decode([token], clean_up_tokenization_spaces=False)
        if REPLACEMENT not in text:
            return text, text.encode()
        symbols = self.tokenizer.convert_ids_to_tokens(token)
        if symbols.startswith("<0x"):  # SentencePiece's byte tokens
            raw = bytes([int(symbols[3:-1], 16)])
        else:
            raw = bytes(self._bytes.get(symbol, 0xFF) for symbol in symbols)
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw


class TextAnswer:
    """The objects of one response of /v1/completions, as `Call` gives the chunks.

    echo has the text of each prompt, to begin its choices with. If the request only scores the
    prompt, the token that the engine generated after it is left out.
    """

    kind = chunk_kind = "text_completion"
    prefix = "cmpl-"

    def __init__(
        self, call: Call, body: GenerationRequest, texts: TokenTexts, echo: Sequence[str] = ()
    ):
        self.call = call
        self.texts = texts
        self.echo = echo
        self.scores_only = body.scores_only
        self.common = {
            "id": self.prefix + uuid.uuid4().hex,
            "object": self.kind,
            "created": int(time.time()),
            "model": body.model,
        }
        if body.service_tier is not None:
            self.common["service_tier"] = "default"  # the only one that this server has
        self._offsets: dict[int, int] = {}  # characters so far of the choices that have begun

    def whole(self, chunks: list[Chunk]) -> dict[str, Any]:
        """The response that is not streamed, from all chunks."""
        choices: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            choices.setdefault(self.call.index(chunk.completion), []).append(chunk)
        listed = [self._choice(index, choices[index], False) for index in sorted(choices)]
        return {**self.common, "choices": listed, "usage": self.usage()}

    def events(self, chunks: list[Chunk], include_usage: bool) -> bytes:
        usage = {"usage": None} if include_usage else {}
        choices = (
            [self._choice(self.call.index(chunk.completion), [chunk], True)] for chunk in chunks
        )
        return b"".join(self._event({"choices": choice, **usage}) for choice in choices)

    def usage_event(self) -> bytes:
        return self._event({"choices": [], "usage": self.usage()})

    def _event(self, data: dict[str, Any]) -> bytes:
        return event({**self.common, "object": self.chunk_kind, **data})

    def usage(self) -> dict[str, Any]:
        """The numbers of tokens. Those of the prefix cache did not have to be computed."""
        prompt = sum(map(len, self.call.prompts))
        new = 0 if self.scores_only else self.call.tokens
        cached = sum(request.hit_tokens for request in self.call.requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _choice(self, index: int, chunks: list[Chunk], delta: bool) -> dict[str, Any]:
        first = index not in self._offsets
        self._offsets.setdefault(index, 0)
        logprobs = [chunk.logprob for chunk in chunks]
        text = "".join(chunk.text for chunk in chunks)
        reason = chunks[-1].finish_reason
        if self.scores_only:
            logprobs = []
            text = ""
            reason = "length"
        if first and self.echo:
            number = index // self.call.params.n
            text = self.echo[number] + text
            logprobs = self.call.requests[number].prompt_logprobs + logprobs
        asked = self.call.params.logprobs is not None
        return {
            "index": index,
            **self._content(text, first, delta),
            "logprobs": self._logprobs(index, logprobs) if asked else None,
            "finish_reason": reason,
        }

    def _content(self, text: str, first: bool, delta: bool) -> dict[str, Any]:
        return {"text": text}

    def _logprobs(self, index: int, logprobs: list[LogProb | None]) -> dict[str, Any]:
        """Four lists in parallel. The first token of a prompt has no log-probability."""
        tokens: list[str] = []
        offsets: list[int] = []
        tops: list[dict[str, float] | None] = []
        ids = self.call.prompts[index // self.call.params.n]
        for logprob in logprobs:
            text, raw = self.texts(ids[0] if logprob is None else logprob.token)
            tokens.append(text)
            # Where its text starts. Bytes 0x80 to 0xBF continue the character before them.
            begins = [byte & 0xC0 != 0x80 for byte in raw]
            continues = begins[:1] == [False]
            offsets.append(self._offsets[index] - 1 if continues else self._offsets[index])
            self._offsets[index] += begins.count(True)
            if logprob is None:
                tops.append(None)
                continue
            top = {self.texts(id)[0]: _finite(value) for id, value in logprob.top}
            tops.append({text: _finite(logprob.logprob)} | top)
        return {
            "tokens": tokens,
            "token_logprobs": [logprob and _finite(logprob.logprob) for logprob in logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


class ChatAnswer(TextAnswer):
    """The objects of one response of /v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl-"

    def _content(self, text: str, first: bool, delta: bool) -> dict[str, Any]:
        role = {"role": "assistant"} if first else {}
        return {"delta" if delta else "message": {**role, "content": text}}

    def _logprobs(self, index: int, logprobs: list[LogProb | None]) -> dict[str, Any]:
        def entry(token: int, value: float) -> dict[str, Any]:
            text, raw = self.texts(token)
            return {"token": text, "logprob": _finite(value), "bytes": list(raw)}

        return {
            "content": [
                entry(token, value) | {"top_logprobs": [entry(*alternative) for alternative in top]}
                for token, value, top in logprobs
            ]
        }


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data: {text}\n\n".encode()


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
