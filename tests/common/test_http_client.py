"""Requests to hostile and to slow servers end; errors have fields; each key goes where it may."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from course_pkg.common import http_client
from course_pkg.common.http_client import HttpClient, RefusedError, ServerError, key_for
from tests.tables import each_row
from tests.waiting import wait_until

WHOLE = {"message": "max_completion_tokens", "code": "c", "param": "stop", "type": "t"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def raw_server(answer):
    """A server of bytes. answer: gets each connection, and an event for the server's end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        def one(connection):
            with connection:
                try:
                    connection.recv(65536)
                    answer(connection, ended)
                except OSError:  # the client has gone
                    pass

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)


def trickle(start):
    """An answer that begins so, and goes on with a byte now and then, without an end."""

    def answer(connection, ended):
        connection.sendall(start)
        while not ended.wait(0.01):
            connection.sendall(b" ")

    return answer


def silence(connection, ended):
    ended.wait()


@each_row(
    "answer",
    [
        trickle(HEAD + b"\r\n"),  # of a length that nobody says
        trickle(HEAD + b"Content-Length: 100000\r\n\r\n"),
        trickle(HEAD + b"X: "),
        trickle(b"HTTP/1.1 400 Bad\r\n\r\n"),
        silence,
    ],
)
def test_a_request_has_a_time_for_all_of_it_however_the_answer_trickles(answer):
    with raw_server(answer) as address:
        client = HttpClient(address, timeout=0.2, retries=0)
        says = "timed out .* raise the timeout|answered 400"
        with pytest.raises((ServerError, RefusedError), match=says):
            client.get("/models")


def test_an_answer_has_a_limit_and_a_part_of_one_is_no_answer(monkeypatch):
    monkeypatch.setattr(http_client, "MOST_BYTES", 1000)

    def flood(connection, ended):
        connection.sendall(HEAD + b"\r\n")
        while not ended.is_set():
            connection.sendall(b"[" * 1000)

    with raw_server(flood) as address, pytest.raises(RefusedError, match="more than 1,000 bytes"):
        HttpClient(address).get("/models")

    def cut(connection, ended):
        connection.sendall(HEAD + b'Content-Length: 50\r\n\r\n{"data": 1}')

    with raw_server(cut) as address, pytest.raises(ServerError, match=r"IncompleteRead.*2 times"):
        HttpClient(address, retries=1, pause=0.0).get("/models")


def test_closing_a_client_ends_what_waits_in_other_threads():
    with raw_server(silence) as address:
        client = HttpClient(address, timeout=100_000.0, pause=100_000.0)
        failed = []

        def ask():
            with pytest.raises(ServerError) as error:
                client.get("/models")
            failed.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: sum(each._socket is not None for each in list(client._running)) == 3)
        client.close()
        for thread in threads:
            thread.join(200)
        assert len(failed) == 3


@pytest.mark.slow
def test_ctrl_c_ends_an_evaluation_although_the_server_does_not_answer(tmp_path):
    asked = threading.Event()

    def answer(connection, ended):
        asked.set()
        ended.wait()

    with raw_server(answer) as address:
        command = [sys.executable, "-m", "course_pkg", "eval", "--task", "short-answers"]
        more = ["--model", address, "--served-model-name", "m", "--timeout", "100000"]
        with subprocess.Popen(command + more, cwd=tmp_path, stderr=subprocess.PIPE) as process:
            wait_until(lambda: asked.is_set() or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=200)[1].decode()
    assert (process.returncode, said.splitlines()[-1]) == (
        130,
        "interrupted; run the same command again to continue",
    )


@each_row(
    ("body", "code", "param", "kind", "named"),
    [
        (
            {"error": {"message": "m", "code": "c", "param": "stop", "type": "t"}},
            "c",
            "stop",
            "t",
            "stop",
        ),
        ({"message": "stop: too long", "code": 400}, None, None, None, "stop"),
        ({"error": "no stop here"}, None, None, None, "stop"),
        (
            {"error": {"message": "max_completion_tokens"}},
            None,
            None,
            None,
            "max_completion_tokens",
        ),
    ],
)
def test_a_refusal_has_the_fields_that_the_server_gives(body, code, param, kind, named):
    data = json.dumps(body).encode()

    def refuse(connection, ended):
        head = f"HTTP/1.1 422 No\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)

    with raw_server(refuse) as address, pytest.raises(RefusedError) as raised:
        HttpClient(address).post("/completions", {})
    error = raised.value
    assert (error.status, error.code, error.param, error.kind) == (422, code, param, kind)
    assert error.names(named) and not error.names("max_tokens")


def test_the_server_s_own_key_is_sent_to_this_machine_alone(monkeypatch):
    for name in (http_client.KEY, http_client.OWN_KEY):
        monkeypatch.delenv(name, raising=False)
    here = ("http://127.0.0.1:8000/v1", "http://localhost/v1", "http://[::1]:1/v1")
    elsewhere = (
        "https://api.example.org/v1",
        "http://10.0.0.5/v1",
        "http://localhost.example.org/v1",
    )
    assert {key_for(each) for each in (*here, *elsewhere)} == {None}
    monkeypatch.setitem(os.environ, http_client.OWN_KEY, "own")
    assert {key_for(each) for each in here} == {"own"}
    assert {key_for(each) for each in elsewhere} == {None}
    monkeypatch.setitem(os.environ, http_client.KEY, "theirs")
    assert {key_for(each) for each in (*here, *elsewhere)} == {"theirs"}
