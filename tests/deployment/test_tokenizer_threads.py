"""Texts to token ids: how few tokens a text can have, and what waits for what."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaTokenizer

from course_pkg.deployment import service as service_module
from course_pkg.deployment.admission import Limits
from course_pkg.deployment.api_errors import ApiError
from course_pkg.deployment.schemas import ChatRequest, CompletionRequest
from course_pkg.deployment.service import Service
from course_pkg.deployment.tokenizer_threads import LONG, TokenBound
from course_pkg.lm.load import load

from .live import PATIENCE, tiny_engine

SPACE = "\u2581"  # SentencePiece's
PARTS = [*"ab é中🌊\n\0=12", SPACE, "<|im_end|>", "</s>", "<unk>", "<0x41>", " a", "ab", "=" * 40]


def llama(byte_tokens=256):
    """A tokenizer of Llama 2's kind: words with their space, and tokens for single bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(byte_tokens))]
    words += [SPACE, *"ab中", f"{SPACE}a", f"{SPACE}ab", SPACE * 2]
    merges = [(SPACE, "a"), (f"{SPACE}a", "b"), (SPACE, SPACE)]
    return LlamaTokenizer(vocab={word: id for id, word in enumerate(words)}, merges=merges)


@pytest.mark.parametrize(
    "tokenizer",
    [load("tiny").tokenizer, pytest.param("smollm2", marks=pytest.mark.model), llama()],
    ids=["bytes", "smollm2", "SentencePiece"],
)
def test_the_bound_of_tokens_is_never_above_their_number(tokenizer):
    tokenizer = load("smollm2-135m").tokenizer if tokenizer == "smollm2" else tokenizer
    bound = TokenBound(tokenizer)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=40).map("".join))
    def check(text):
        assert bound(text) <= len(tokenizer(text).input_ids)

    check()
    assert bound("a" * 10_000) >= 400


def test_the_bound_is_0_for_tokenizers_whose_tokens_may_cover_any_text():
    text = "中" * 999  # without tokens for its bytes, one <unk>
    assert TokenBound(llama())(text) == 999 and TokenBound(llama(byte_tokens=9))(text) == 0


@pytest.mark.parametrize("kind", ["complete", "chat"])
def test_a_short_prompt_does_not_wait_for_a_long_one(kind, monkeypatch):
    """Even if the long one cannot be refused before it is encoded."""
    encode = service_module._ids
    encoding = threading.Event()
    released = threading.Event()

    def slow(tokenizer, text, **options):
        if len(text) > LONG:
            encoding.set()
            released.wait(PATIENCE)
        return encode(tokenizer, text, **options)

    def ask(text):
        if kind == "chat":
            turns = [{"role": "user", "content": text}]
            return service.chat(ChatRequest(model="tiny", messages=turns, max_tokens=1))
        return service.complete(CompletionRequest(model="tiny", prompt=text, max_tokens=1))

    async def scenario():
        service.thread.start()
        late = asyncio.ensure_future(ask("a" * 2 * LONG))
        await asyncio.to_thread(encoding.wait, PATIENCE)
        call = await asyncio.wait_for(ask("a"), PATIENCE)
        assert [chunk async for chunks in call for chunk in chunks] and not late.done()
        released.set()
        with pytest.raises(ApiError, match="tokens, and max_tokens is 1"):
            await late
        await service.stop()

    monkeypatch.setattr(service_module, "_ids", slow)
    monkeypatch.setattr(TokenBound, "__call__", lambda bound, text: 0)
    service = Service(tiny_engine(), "tiny", Limits())
    asyncio.run(scenario())
