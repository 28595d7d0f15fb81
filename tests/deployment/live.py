"""A server of the tiny model in this process, on a free port of this machine."""

import asyncio
import http.client
import json
import socket
import threading
from contextlib import contextmanager

import openai

from course_pkg.deployment.admission import Limits
from course_pkg.deployment.app import create_app
from course_pkg.deployment.server import Server, bind
from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine
from tests.waiting import wait_until

MODEL = load("tiny")
KEY = "a-key-of-at-least-16-characters"
PATIENCE = 200.0  # seconds until what hangs is an error


def tiny_engine(**options):
    return Engine(*MODEL, **{"blocks": 512, "block_size": 8} | options)


EXTENSIONS = {"ignore_eos", "top_k", "min_p", "repetition_penalty", "cache_salt"}
EXTENSIONS |= {"guided_regex", "guided_choice", "guided_json", "structured_outputs"}


def complete(client, prompt="a", **fields):
    """What /v1/completions answers; greedy, 12 tokens and no end, if the fields don't say else."""
    return client.completions.create(prompt=prompt, **_given(fields))


def chat(client, content="Hi", **fields):
    """What /v1/chat/completions answers to a user, or to the whole `messages`."""
    fields = {"messages": [{"role": "user", "content": content}]} | _given(fields)
    return client.chat.completions.create(**fields)


def _given(fields):
    fields = {"model": "tiny", "temperature": 0, "max_tokens": 12, "ignore_eos": True} | fields
    extra = {name: fields.pop(name) for name in EXTENSIONS & fields.keys()}
    return fields | {"extra_body": extra}


class Live:
    def __init__(self, engine, app, server, port):
        self.engine = engine
        self.app = app
        self.server = server
        self.port = port
        self.gate = app.state.gate

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self, kind=openai.OpenAI, key="unused", **options):
        return kind(
            base_url=self.url, api_key=key, **{"max_retries": 0, "timeout": PATIENCE} | options
        )

    @property
    def free(self):
        return self.engine.scheduler.block_manager.pool.num_free

    @property
    def is_empty(self):
        """Nothing runs, waits or holds a block."""
        engine = self.engine
        left = self.gate.open or engine.requests or engine._completions or engine.scheduler.has_work
        thread = self.app.state.service.thread
        return (
            not left
            and not thread._calls
            and self.free == len(engine.scheduler.block_manager.pool.blocks)
        )

    @contextmanager
    def held(self, steps=0):
        """Let the engine take so many steps meanwhile, so that what runs does not end before."""
        engine = self.engine
        step = engine.step
        allowed = threading.Semaphore(steps)

        engine.step = lambda: step() if allowed.acquire(timeout=0.002) else []
        try:
            yield
        finally:
            engine.step = step

    def connect(self, receive_buffer=None):
        raw = socket.socket()
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(PATIENCE)
        raw.connect(("127.0.0.1", self.port))
        return raw

    def get(self, path, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", path, headers=dict(headers))
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def post(self, path, body, headers=()):
        """The status and the JSON for a body that may be wrong, sent as it is."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += headers or ["Content-Type: application/json"]
        lines += [f"Content-Length: {len(body)}", "", ""]
        with self.connect() as raw:
            raw.sendall("\r\n".join(lines).encode() + body)
            return parse(read_all(raw))


async def until(holds):
    """Wait in an event loop until a condition holds."""
    await asyncio.to_thread(wait_until, holds, PATIENCE)


def read_all(raw):
    parts = []
    while part := raw.recv(65536):
        parts.append(part)
    return b"".join(parts)


def parse(response):
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@contextmanager
def serving(engine=None, *, model="tiny", key=None, origins=(), **limits):
    """A Live server; at the end it stops, and must be empty."""
    engine = engine or tiny_engine()
    limits = Limits(**limits)
    app = create_app(engine, model, limits=limits, key=key, origins=origins)
    server = Server(app, limits)
    with bind("127.0.0.1", 0) as bound:
        live = Live(engine, app, server, bound.getsockname()[1])
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield live
            wait_until(lambda: live.is_empty)
        finally:
            server.close(0)
            thread.join(PATIENCE)
            assert not thread.is_alive()
