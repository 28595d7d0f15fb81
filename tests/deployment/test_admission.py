"""Many clients, impatient ones, slow ones and large ones: the engine survives, nothing is left."""

import asyncio
import gc
import http.client
import json
import math
import re
from types import SimpleNamespace

import httpx
import openai
import psutil
import pytest
import uvicorn
from uvicorn.server import ServerState

from course_pkg.deployment.admission import Gate, Limits
from course_pkg.deployment.app import create_app
from course_pkg.deployment.guard import Guard
from course_pkg.deployment.monitoring import Metrics
from course_pkg.deployment.server import Connection
from course_pkg.serving.sampling import SamplingParams
from tests.refusals import require_refusals
from tests.serving.engines import change_logits
from tests.tables import each_row
from tests.waiting import wait_until

from .live import KEY, PATIENCE, chat, complete, parse, read_all, serving, tiny_engine

LONG = {"max_tokens": 1500}


def request(path="/v1/completions", length=None, headers=()):
    """The head of a request; its body follows."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {length}"] if length is not None else []
    return "\r\n".join([*lines, *headers, "", ""]).encode()


def body(**fields):
    return json.dumps({"model": "tiny", "prompt": "a", **fields}).encode()


async def sent_by(app, scope, *messages):
    """What an ASGI application sends for these messages, after which the client waits."""
    messages = iter(messages)
    sent = []

    async def receive():
        return next(messages, None) or await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(b"host", b"localhost")]} | scope
    await asyncio.wait_for(app(scope, receive, send), PATIENCE)
    return sent


def test_64_streams_at_once_give_what_each_prompt_gives_alone():
    prompts = [f"prompt {index}" * (1 + index % 3) for index in range(64)]
    params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
    wanted = [r.completions[0].text for r in tiny_engine().generate(prompts, params)]

    async def one(client, prompt):
        stream = await complete(client, prompt, max_tokens=10, stream=True)
        return "".join([event.choices[0].text async for event in stream])

    async def all_of_them(live):
        async with live.client(openai.AsyncOpenAI) as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

    with serving(tiny_engine(max_sequences=16)) as live:
        assert asyncio.run(all_of_them(live)) == wanted


def test_clients_that_go_away_free_their_blocks():
    with serving() as live:
        free = live.free
        client = live.client()
        for ask in (complete, chat):
            with live.held(3):
                stream = ask(client, stream=True, **LONG)
                next(iter(stream))
                assert live.free < free
                stream.close()
                wait_until(lambda: not live.gate.open)
            wait_until(lambda: live.is_empty)
        text = body(n=4, ignore_eos=True, **LONG)
        with live.held(3):
            with live.connect() as raw:  # it waits for a whole answer, and gives up
                raw.sendall(request(length=len(text)) + text)
                wait_until(lambda: live.free < free)
            wait_until(lambda: not live.gate.open)
        wait_until(lambda: live.is_empty)
        text = live.get("/metrics")
        tokens = float(re.search(r"course_generation_tokens_total\S+ (\S+)", text)[1])
        assert tokens <= 24  # of 9000; an abort comes before the step after the next one
        with live.connect() as raw:  # it goes while it sends
            raw.sendall(request(length=1000) + b"{")
            wait_until(lambda: live.gate.open == 1)
        wait_until(lambda: live.is_empty)
        assert live.free == free


def test_a_full_server_says_when_to_come_again():
    with serving(tiny_engine(max_sequences=2), waiting=1) as live:
        client = live.client()
        with live.held():
            streams = [complete(client, stream=True, **LONG) for _ in range(3)]
            with pytest.raises(openai.RateLimitError) as full:
                complete(client, max_tokens=1)
            assert int(full.value.response.headers["retry-after"]) >= 1
            assert full.value.code == "rate_limit_exceeded"
            assert client.models.list().data  # what needs no engine is answered
            for stream in streams:
                stream.close()
        wait_until(lambda: live.is_empty)
        # The client waits as it is told, and comes again.
        assert complete(live.client(max_retries=2)).choices


def test_a_key_is_needed_for_everything_but_health():
    with serving(key=KEY) as live:
        for key in ("wrong", KEY + "x", KEY[:-1], KEY.upper()):
            with pytest.raises(openai.AuthenticationError) as refused:
                live.client(key=key).models.list()
            assert refused.value.code == "invalid_api_key" and KEY not in str(refused.value)
        assert live.client(key=KEY).models.list().data
        for value in (None, "Bearer", f"Basic {KEY}", "Bearer \xff\xfe"):
            headers = [] if value is None else [f"Authorization: {value}"]
            status, answer = live.post("/v1/completions", b"{", headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        for path, status in {"/health": 200, "/ready": 200, "/metrics": 401, "/x": 401}.items():
            connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
            connection.request("GET", path, headers={"Host": "anything.example"})
            assert connection.getresponse().status == status
            connection.close()


def test_a_path_that_needs_no_key_takes_no_place():
    with serving(key=KEY, waiting=1, engine=tiny_engine(max_sequences=1)) as live:
        begun = []
        for path in ("/health", "/ready") * 2:  # bodies that never come, for more than all places
            raw = live.connect()
            raw.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n".encode())
            begun.append(raw)
        for raw in begun:
            assert raw.recv(65536).startswith(b"HTTP/1.1 405")
        assert (live.gate.taken, live.gate.open) == (0, 0)
        assert complete(live.client(key=KEY)).choices
        for raw in begun:
            raw.close()


HOSTS = {
    **dict.fromkeys(("evil.example", "evil.example:{port}", "10.0.0.1", "", "::1"), 403),
    **dict.fromkeys(("localhost", "LOCALHOST:{port}", "127.0.0.1:{port}", "[::1]"), 200),
    "127.0.0.2": 200,
    "localhost:1": 200,  # a tunnel, as of `ssh -L`, may have another port than the server
}


def test_without_a_key_only_local_names_of_this_machine_are_answered():
    statuses = {}
    with serving() as live:
        for host in HOSTS:
            head = f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            with live.connect() as raw:
                raw.sendall(head.format(port=live.port).encode())
                statuses[host], answer = parse(read_all(raw))
            if statuses[host] == 403:
                assert "local host names" in answer["error"]["message"]
    assert statuses == HOSTS


def test_large_bodies_are_refused_before_they_are_read():
    with serving(body_bytes=10_000) as live:
        client = live.client()
        with pytest.raises(openai.APIStatusError) as large:
            complete(client, "a" * 20_000_000)
        assert large.value.status_code == 413 and large.value.code == "request_too_large"
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
        chunks = (b"a" * 50_000 for _ in range(100))  # without a length
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", chunks, kind, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        assert complete(client).choices


def test_a_body_with_two_ends_and_large_headers_are_refused():
    with serving() as live, live.connect() as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        status, answer = parse(read_all(raw))
        assert status == 400 and "both Content-Length and" in answer["error"]["message"]
    with serving() as live, live.connect() as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000)
        try:
            assert read_all(raw).startswith(b"HTTP/1.1 400")
        except ConnectionResetError:  # before the answer, because not all was read
            assert live.client().models.list().data


def test_slow_senders_are_cut_off(monkeypatch):
    with serving(read_seconds=0.2) as live:
        silent, head = live.connect(), live.connect()
        head.sendall(b"POST /v1/completions HTTP/1.1\r\nHost:")
        assert silent.recv(1000) == head.recv(1000) == b""
        silent.close()
        head.close()
        with live.connect() as discarded:
            discarded.sendall(request(length=10**9) + b"{")
            assert discarded.recv(65536).startswith(b"HTTP/1.1 413")

            def is_cut_off():  # while it goes on to send, a byte at a time
                try:
                    discarded.sendall(b"a")
                except OSError:
                    return True
                return False

            wait_until(is_cut_off, PATIENCE)
        monkeypatch.setattr("course_pkg.deployment.server.GRACE", PATIENCE)
        with live.connect() as late:
            late.sendall(request(length=100) + b"{")
            status, answer = parse(read_all(late))
            assert status == 408 and "0.2 s" in answer["error"]["message"]


def stands(timer):
    return timer.cancelled()  # codespell:ignore


def test_the_clock_for_sending_stands_while_a_request_runs_and_between_two():
    with serving() as live, live.connect() as raw:
        wait_until(lambda: live.server.server_state.connections)
        [connection] = live.server.server_state.connections
        # By default up to 64 KB may wait unsent for ever, in a connection that seems to be done.
        assert connection.transport.get_write_buffer_limits() == (0, 0)
        assert not stands(connection._reading)
        for _ in range(2):
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while not received.endswith(b'"ok"}'):
                received += raw.recv(1000)
            assert stands(connection._reading)
        text = body(max_tokens=4, ignore_eos=True, n=4)
        with live.held():
            raw.sendall(request(length=len(text), headers=["Connection: close"]) + text)
            wait_until(lambda: live.engine.requests)
            assert stands(connection._reading)
        status, answer = parse(read_all(raw))
        assert status == 200 and answer["usage"]["completion_tokens"] == 16


class Clock:
    """An event loop's clock: a test lets the last timer run out."""

    def call_later(self, seconds, function, *arguments):
        self.seconds = seconds
        self.run_out = lambda: function(*arguments)
        return SimpleNamespace(cancel=lambda: None)


def test_a_reader_is_cut_off_only_if_it_took_nothing_since_the_last_look():
    clock = Clock()
    config = uvicorn.Config(print, log_config=None, ws="none")
    connection = Connection(config, ServerState(), {}, clock, limits=Limits(write_seconds=3.0))
    unsent = iter([500, 400, 400])
    aborted = []
    connection.transport = SimpleNamespace(
        get_write_buffer_size=lambda: next(unsent), abort=lambda: aborted.append(next(unsent, None))
    )
    connection._time_reader(None)
    clock.run_out()
    assert clock.seconds == 3.0 and not aborted
    clock.run_out()
    assert aborted == [None]


def test_too_many_connections_are_refused():
    with serving(connections=5) as live:
        held = [live.connect() for _ in range(5)]
        wait_until(lambda: len(live.server.server_state.connections) == 5)
        with live.connect() as raw:
            status, answer = parse(read_all(raw))
            assert status == 503 and "connections" in answer["error"]["message"]
        for raw in held:
            raw.close()
        wait_until(lambda: not live.server.server_state.connections)
        assert live.client().models.list().data


def test_a_reader_that_is_behind_loses_its_request_and_nobody_else():
    with serving(backlog=50, write_seconds=0.5) as live:
        text = body(**{"max_tokens": 1000, "logprobs": 20, "stream": True, "ignore_eos": True})
        with live.connect(receive_buffer=4096) as slow:
            with live.held():
                slow.sendall(request(length=len(text)) + text)
                wait_until(lambda: live.engine.requests)
            other = complete(live.client(), "b", max_tokens=100)
            assert other.usage.completion_tokens == 100
            wait_until(lambda: live.is_empty)  # aborted, though it still does not read
            wait_until(lambda: not live.server.server_state.connections, PATIENCE)  # and cut off
            assert b"[DONE]" not in read_all(slow)  # what the kernel had, then the end


def test_an_answer_that_is_never_read_to_its_end_gives_its_place_back():
    """A reader that always takes a little passes the limit on the time without a byte."""

    async def app(scope, receive, send):
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def scenario():
        gate = Gate(1)
        limits = Limits(request_seconds=0.05, write_seconds=0.05)
        metrics = Metrics(tiny_engine(), lambda: gate.open)
        guard = Guard(app, gate=gate, limits=limits, metrics=metrics, key=None)
        for path, status in {"/begun": 200, "/silent": 504}.items():
            scope = {"method": "POST", "path": path, "server": ("127.0.0.1", 1), "client": None}
            body = {"type": "http.request", "body": b"", "more_body": False}
            sent = await sent_by(guard, scope, body)
            assert gate.open == 0 and sent[0]["status"] == status

    asyncio.run(scenario())


@each_row(
    ("method", "path", "text", "status"),
    [
        ("GET", "/health", None, 200),
        ("POST", "/v1/completions", body(max_tokens=2, stream=True), 200),
        ("POST", "/v1/completions", None, 400),
    ],
)
def test_the_fields_that_asgi_makes_optional_may_be_absent(method, path, text, status):
    async def scenario():
        scope = {"method": method, "path": path, "query_string": b""}
        scope |= {"asgi": {"version": "3.0"}, "http_version": "1.1"}
        scope["headers"] = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        message = {"type": "http.request"} | ({"body": text} if text else {})
        app = create_app(tiny_engine(), "tiny")
        async with app.router.lifespan_context(app):
            sent = await sent_by(app, scope, message)
        assert sent[0]["status"] == status

    asyncio.run(scenario())


def test_an_answer_that_takes_too_long_ends_with_an_error():
    with serving(request_seconds=0.05) as live:
        with live.held(), pytest.raises(openai.APIStatusError) as late:
            complete(live.client(), n=4, **LONG)
        assert late.value.status_code == 504


def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(monkeypatch):
    with serving() as live:
        client = live.client()
        run = live.engine.runner.run
        stream = complete(client, stream=True, **LONG)
        next(iter(stream))

        def fail(*_):
            live.engine.runner.run = run
            raise RuntimeError("out of memory")

        live.engine.runner.run = fail
        with pytest.raises(openai.APIError, match="the engine failed"):
            list(stream)
        wait_until(lambda: live.is_empty)
        live.engine.runner.run = fail
        with pytest.raises(openai.InternalServerError, match="the engine failed"):
            complete(client)
        schedule = live.engine.scheduler.schedule
        live.engine.scheduler.schedule = fail
        with pytest.raises(openai.InternalServerError):  # it would fail for ever
            complete(client)
        live.engine.scheduler.schedule = schedule
        assert complete(client).choices


@pytest.mark.exhaustive
def test_requests_leave_no_memory_behind():
    """Between the first fifth of the requests and the last, memory grows by less than 15 MB."""
    memory = psutil.Process().memory_info
    count = 1600

    async def one(client, index):
        streamed = index % 3 == 0
        prompt = f"{index} " * 20
        answer = await complete(client, prompt, max_tokens=8, stream=streamed, logprobs=1)
        if streamed:
            async for _ in answer:
                if index % 2:
                    await answer.close()  # in the middle
                    break

    async def rounds(live, first, last):
        async with live.client(openai.AsyncOpenAI) as client:
            for start in range(first, last, 32):
                await asyncio.gather(*(one(client, i) for i in range(start, start + 32)))

    with serving() as live:
        asyncio.run(rounds(live, 0, count // 5))
        gc.collect()
        before = memory().rss
        asyncio.run(rounds(live, count // 5, count))
        wait_until(lambda: live.is_empty)
        gc.collect()
        assert memory().rss - before < 15e6


def test_limits_must_make_sense():
    require_refusals(
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1"),
        ({"waiting": -1}, "waiting must be an integer of at least 0"),
        ({"read_seconds": "5"}, "read_seconds must be a number"),
        ({"write_seconds": math.nan}, "write_seconds must be above 0"),
        ({"prompt_tokens": True}, "prompt_tokens must be an integer of at least 1"),
        of=lambda limits: Limits(**limits),
        errors=(ValueError, TypeError),
    )


@each_row("extra", [{}, {"temperature": 0}, {"temperature": 0, "logprobs": 1}])
def test_a_request_whose_logits_are_nan_gets_an_error_and_others_their_answer(extra):
    def spoil(rows, logits):
        for sequence, span in rows.items():
            if sequence.prompt == [66]:
                logits[span] = math.nan

    engine = tiny_engine()
    change_logits(engine, spoil)
    with serving(engine) as live:
        status, answer = live.post("/v1/completions", {"model": "tiny", "prompt": "B", **extra})
        assert status == 500 and answer["error"]["type"] == "server_error"
        assert live.post("/v1/completions", {"model": "tiny", "prompt": "A", **extra})[0] == 200


def test_samples_take_places():
    with serving(tiny_engine(max_sequences=4), waiting=4, choices=64) as live:
        client = live.client()
        with pytest.raises(openai.BadRequestError, match="9 samples: this server takes 8 at once"):
            complete(client, n=9)
        with live.held(3):
            stream = complete(client, n=6, stream=True, **LONG)
            next(iter(stream))
            assert live.gate.taken == 6 and live.gate.open == 1
            with pytest.raises(openai.RateLimitError, match="6 samples are running or waiting"):
                complete(client, ["a", "b", "c"])
        assert complete(client, n=2, max_tokens=2).choices
        for n in (0, -5):
            with pytest.raises(openai.BadRequestError):
                complete(client, n=n)
        stream.close()
        wait_until(lambda: live.is_empty)
        assert live.gate.taken == 0


def test_web_pages_of_allowed_origins_may_ask():
    wanted = {"Method": "POST", "Headers": "authorization"}
    ask = {f"Access-Control-Request-{name}": value for name, value in wanted.items()}
    with serving(origins=["https://good.example"]) as live:
        for origin, status in {"https://good.example": 200, "https://evil.example": 400}.items():
            answer = httpx.options(f"{live.url}/completions", headers={"Origin": origin, **ask})
            allowed = answer.headers.get("access-control-allow-origin") == origin
            assert (answer.status_code, allowed) == (status, status == 200)
    with serving() as live:
        answer = httpx.get(f"{live.url}/models", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers
