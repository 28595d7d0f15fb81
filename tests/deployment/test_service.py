"""The service: what waits for what, also while it stops, and where answers are built."""

import asyncio
import threading
from types import SimpleNamespace

import openai
import pytest

from course_pkg.deployment import service as service_module
from course_pkg.deployment.admission import Limits
from course_pkg.deployment.api_errors import ApiError
from course_pkg.deployment.app import respond
from course_pkg.deployment.schemas import ChatRequest, CompletionRequest
from course_pkg.deployment.service import Service
from course_pkg.deployment.tokenizer_threads import LONG, TokenBound

from .live import PATIENCE, chat, complete, serving, tiny_engine, until

BODY = CompletionRequest(model="tiny", prompt="a", max_tokens=500, ignore_eos=True)


def test_requests_whose_texts_are_encoded_while_it_stops_get_503(monkeypatch):
    engine = tiny_engine()
    service = Service(engine, "tiny", Limits())
    encoding, stepping, stopped = (threading.Event() for _ in range(3))
    encode = service_module._ids
    step = engine.step

    def slow_encode(tokenizer, text):
        encoding.set()
        stopped.wait(PATIENCE)
        return encode(tokenizer, text)

    def slow_step():  # until all texts are encoded, so the thread is still alive then
        stepping.set()
        stopped.wait(PATIENCE)
        return step()

    async def scenario():
        service.thread.start()
        await service.complete(BODY)
        monkeypatch.setattr(engine, "step", slow_step)
        await asyncio.to_thread(stepping.wait, PATIENCE)
        monkeypatch.setattr(service_module, "_ids", slow_encode)
        tasks = [asyncio.ensure_future(service.complete(BODY)) for _ in range(2)]
        await asyncio.to_thread(encoding.wait, PATIENCE)  # the second one waits for the first
        stopping = asyncio.ensure_future(service.stop())
        await until(lambda: service._stopping)
        stopped.set()
        tasks.append(asyncio.ensure_future(service.complete(BODY)))
        _, late = await asyncio.wait(tasks, timeout=PATIENCE)
        for task in late:
            task.cancel()
        await stopping
        assert not late and not engine.requests
        for task in tasks:
            with pytest.raises(ApiError) as refused:
                task.result()
            assert refused.value.status == 503

    asyncio.run(scenario())


def test_a_whole_answer_is_built_outside_the_event_loop():
    """With log-probabilities of thousands of tokens, it takes seconds."""
    threads = []

    async def pieces():
        yield ["piece"]

    def whole(pieces):
        threads.append(threading.current_thread())
        return {"pieces": pieces}

    async def scenario():
        response = await respond(BODY, SimpleNamespace(call=pieces(), whole=whole))
        assert response.body == b'{"pieces":["piece"]}'
        assert threads != [threading.current_thread()]

    asyncio.run(scenario())


def test_a_prompt_with_too_many_bytes_is_refused_without_encoding_it(monkeypatch):
    def never(*_, **__):
        raise AssertionError("it is encoded")

    monkeypatch.setattr("course_pkg.deployment.service._ids", never)
    with serving() as live:
        for ask in (complete, chat):
            with pytest.raises(openai.BadRequestError, match=r"at least 20000\d tokens") as long:
                ask(live.client(), "a b " * 100_000)
            assert long.value.code == "context_length_exceeded"


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
        with pytest.raises(ApiError, match=r"has 655\d\d tokens: .* at most 2047 tokens"):
            await late
        await service.stop()

    monkeypatch.setattr(service_module, "_ids", slow)
    monkeypatch.setattr(TokenBound, "__call__", lambda bound, text: 0)
    service = Service(tiny_engine(), "tiny", Limits())
    asyncio.run(scenario())
