"""A model behind an address answers as it does here; each kind of fault has its consequence."""

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from course_pkg.evaluation import http_client, server_model
from course_pkg.evaluation.http_client import HttpClient
from course_pkg.evaluation.local_model import load_model
from course_pkg.evaluation.run import run_task
from course_pkg.evaluation.run_errors import RunError, ServerError
from course_pkg.evaluation.sample_log import read_log
from course_pkg.evaluation.server_model import ServerModel, first_scored
from course_pkg.evaluation.task_file import load_task
from tests.deployment.live import serving
from tests.refusals import require_refusals

MODELS = {"data": [{"id": "m"}]}


@contextmanager
def fake(answer, headers=()):
    """A server; answer: (path, body) → (status, object). It yields a client and what was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(None)

        def do_POST(self):
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body):
            path = self.path.removeprefix("/v1")
            asked.append((path, body, self.headers.get("Authorization")))
            status, value = answer(path, body)
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, text in dict(headers).items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield HttpClient(address, "secret", pause=0.0, retries=1), asked
    finally:
        server.shutdown()
        server.server_close()


def writing(text, finish="stop"):
    def answer(path, body):
        if path == "/models":
            return 200, MODELS
        choice = {"index": 0, "text": text, "message": {"content": text}, "finish_reason": finish}
        return 200, {"choices": [choice]}

    return answer


@pytest.fixture(scope="module")
def live():
    with serving() as running:
        yield running


@pytest.mark.parametrize("name", ["multiple-choice", "short-answers"])
def test_course_serve_gives_what_the_model_gives_here(live, name, tmp_path):
    task = load_task(name)
    model = ServerModel(HttpClient(live.url))
    assert model.name == "tiny"
    there = run_task(task, model, tmp_path / "there", limit=4).record
    here = run_task(task, load_model("tiny"), tmp_path / "here", limit=4).record
    assert there.failed == 0
    for mine, theirs in zip(here.samples, there.samples, strict=True):
        assert (mine.prompt, mine.scores) == (theirs.prompt, theirs.scores)
        if "text" in mine.answer:
            assert theirs.answer["text"] == mine.answer["text"]
            continue
        for ours, option in zip(mine.answer["options"], theirs.answer["options"], strict=True):
            assert option["log_probs"] == pytest.approx(ours["log_probs"], abs=1e-4)
            assert option["unconditional"] == pytest.approx(ours["unconditional"], abs=1e-3)


def test_a_chat_is_sent_as_messages_with_the_key_and_without_sampling(tmp_path):
    task = replace(load_task("short-answers"), chat=True)
    task = replace(task, examples=task.examples[:1])
    with fake(writing("blue\nand more")) as (client, asked):
        record = run_task(task, ServerModel(client), tmp_path, limit=1).record
    path, body, key = asked[-1]
    assert (path, key) == ("/chat/completions", "Bearer secret")
    assert (body["model"], body["temperature"]) == ("m", 0)
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"] == record.samples[0].prompt
    assert record.samples[0].answer["text"] == "blue"  # this server ignores `stop`


@pytest.mark.parametrize(
    "answer",
    [
        lambda path, body: (400, {"error": "echo is not supported"}),
        lambda path, body: (200, {"choices": [{"index": 0, "text": "x"}, {"index": 1}]}),
        lambda path, body: (200, {"choices": [{"index": n, "logprobs": None} for n in (0, 1)]}),
    ],
)
def test_a_server_without_log_probabilities_is_one_error_before_any_item(answer, tmp_path):
    task = load_task("multiple-choice")
    with (
        fake(answer) as (client, asked),
        pytest.raises(RunError, match="does not give the log-probabilities of a prompt's tokens"),
    ):
        run_task(task, ServerModel(client, "m"), tmp_path)
    assert len(asked) == 1


def test_a_request_that_is_refused_costs_one_item(tmp_path):
    task = load_task("short-answers")
    victim = task.chosen(4)[2]

    def answer(path, body):
        if body and body["prompt"].endswith(f"{victim.fields['question']}\nAnswer:"):
            return 500, {"error": "out of memory"}
        return writing("blue")(path, body)

    with fake(answer) as (client, asked):
        record = run_task(task, ServerModel(client), tmp_path, limit=4).record
    assert [each.id for each in record.samples if each.error] == [victim.id]
    assert "500" in next(each.error for each in record.samples if each.error)
    assert len(asked) == 1 + 4 + 1  # the models, the items, and one more try


def test_a_server_that_fails_on_everything_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(server_model, "MOST_FAILED", 3)
    with (
        fake(lambda path, body: (500, {})) as (client, _),
        pytest.raises(ServerError, match="3 requests in a row failed"),
    ):
        run_task(load_task("short-answers"), ServerModel(client, "m"), tmp_path, limit=12)


def test_a_wrong_key_and_a_server_that_is_gone_end_the_run(tmp_path):
    task = load_task("short-answers")
    with (
        fake(lambda path, body: (401, {"error": "no such key"})) as (client, _),
        pytest.raises(RunError, match=r"401.*correct the address, the model or the key"),
    ):
        run_task(task, ServerModel(client, "m"), tmp_path, limit=2)
    with pytest.raises(ServerError, match=r"does not answer.*run the same command again"):
        run_task(task, ServerModel(client, "m"), tmp_path, limit=2)


def test_a_busy_server_says_how_long_to_wait(monkeypatch):
    slept = []
    monkeypatch.setattr(http_client, "time", SimpleNamespace(sleep=slept.append))
    replies = iter([(429, {}), (200, MODELS)])
    with fake(lambda path, body: next(replies), {"Retry-After": "7"}) as (client, asked):
        assert ServerModel(client).name == "m"
    assert (slept, len(asked)) == ([7.0], 2)


def test_what_the_server_still_answers_is_kept_when_a_run_ends(tmp_path, monkeypatch):
    task = load_task("short-answers")
    first = task.chosen(4)[0].fields["question"]
    waiting = threading.Barrier(4)  # all four are asked before one is answered
    ended = threading.Event()
    is_fatal = server_model._fatal

    def fatal(error, failed):
        found = is_fatal(error, failed)
        if found is not None:
            ended.set()
        return found

    monkeypatch.setattr(server_model, "_fatal", fatal)

    def answer(path, body):
        waiting.wait(200)
        if body["prompt"].endswith(f"{first}\nAnswer:"):
            return 403, {"error": "no credit"}
        assert ended.wait(200)
        return writing("blue")(path, body)

    with fake(answer) as (client, asked), pytest.raises(RunError, match="no credit"):
        run_task(task, ServerModel(client, "m"), tmp_path, limit=4)
    assert len(asked) == 4
    _, samples, _ = read_log(tmp_path / "samples.jsonl")
    assert len(samples) == 3 and not any(sample.error for sample in samples.values())


def test_one_of_several_models_must_be_named_and_an_address_must_be_http():
    with (
        fake(lambda path, body: (200, {"data": [{"id": "a"}, {"id": "b"}]})) as (client, _),
        pytest.raises(RunError, match="has a, b: name one with --served-model-name"),
    ):
        ServerModel(client)
    addresses = ("ftp://host/v1", "http:///v1", "http://user:key@host/v1")
    rows = [(address, "the address must be like") for address in addresses]
    require_refusals(*rows, of=HttpClient, errors=RunError)


def test_each_token_of_an_option_needs_its_log_probability_and_a_bos_does_not_shift_it():
    with pytest.raises(ValueError, match="nothing precedes it"):
        first_scored([("b", 0, None, False), ("c", 1, -1.0, True)], 0)
    rows = {
        "tokens": ["<s>", "A", ":", " b"],
        "text_offset": [0, 3, 4, 5],
        "token_logprobs": [None, -1.0, -2.0, -3.0],
        "top_logprobs": [None, {"A": -1.0}, {"x": -0.5}, {" b": -3.0}],
    }
    tokens = server_model._tokens(rows, "A: b")
    assert tokens[first_scored(tokens, 2)] == (" b", 2, -3.0, True)
