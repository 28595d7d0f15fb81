import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from course_pkg.common.http_client import HttpClient, ServerError, WrongServerError
from course_pkg.evaluation import server_model
from course_pkg.evaluation.items import Item
from course_pkg.evaluation.local_model import load_model
from course_pkg.evaluation.run_errors import RunError
from course_pkg.evaluation.sample_log import read_log
from course_pkg.evaluation.scored_tokens import Token, first_scored, read_tokens
from course_pkg.evaluation.server_model import ServerModel
from course_pkg.evaluation.task_file import load_task
from course_pkg.evaluation.task_run import run_task
from tests.deployment.live import serving
from tests.refusals import require_refusals
from tests.tables import each_row

MODELS = {"data": [{"id": "m"}]}
SHORT = load_task("short-answers")
CHOICE = load_task("multiple-choice")


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


def run(client, folder, task=SHORT, limit=None):
    """The record of a run with the server's model m."""
    return run_task(task, ServerModel(client, "m"), folder, limit=limit).record


@pytest.fixture(scope="module")
def live():
    with serving() as running:
        yield running


@pytest.mark.parametrize("task", [CHOICE, SHORT], ids=["options", "texts"])
def test_course_serve_gives_what_the_model_gives_here(live, task, tmp_path):
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
    task = replace(SHORT, chat=True, examples=SHORT.examples[:1])
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
    says = "does not give the log-probabilities of a prompt's tokens"
    with fake(answer) as (client, asked), pytest.raises(RunError, match=says):
        run(client, tmp_path, CHOICE)
    assert len(asked) == 1


def test_a_request_that_is_refused_costs_one_item(tmp_path):
    victim = SHORT.chosen(4)[2]

    def answer(path, body):
        if body and body["prompt"].endswith(f"{victim.fields['question']}\nAnswer:"):
            return 500, {"error": "out of memory"}
        return writing("blue")(path, body)

    with fake(answer) as (client, asked):
        record = run_task(SHORT, ServerModel(client), tmp_path, limit=4).record
    [failed] = [sample for sample in record.samples if sample.error]
    assert failed.id == victim.id and "500" in failed.error
    assert len(asked) == 1 + 4 + 1  # the models, the items, and one more try


def test_a_server_that_fails_on_everything_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(server_model, "MOST_FAILED", 3)
    says = "3 requests in a row failed"
    with fake(lambda *_: (500, {})) as (client, _), pytest.raises(ServerError, match=says):
        run(client, tmp_path, limit=12)


def test_a_wrong_key_and_a_server_that_is_gone_end_the_run(tmp_path):
    with (
        fake(lambda path, body: (401, {"error": "no such key"})) as (client, _),
        pytest.raises(WrongServerError, match=r"401.*correct the address, the model or the key"),
    ):
        run(client, tmp_path, limit=2)
    with pytest.raises(ServerError, match=r"does not answer.*run the same command again"):
        run(client, tmp_path, limit=2)


def test_a_busy_server_says_how_long_to_wait(monkeypatch):
    slept = []
    monkeypatch.setattr(HttpClient, "_wait", lambda self, seconds: slept.append(seconds))
    replies = iter([(429, {}), (200, MODELS)])
    with fake(lambda path, body: next(replies), {"Retry-After": "7"}) as (client, asked):
        assert ServerModel(client).name == "m"
    assert (slept, len(asked)) == ([7.0], 2)


def test_what_the_server_still_answers_is_kept_when_a_run_ends(tmp_path, monkeypatch):
    first = SHORT.chosen(4)[0].fields["question"]
    waiting = threading.Barrier(4)  # all four are asked before one is answered
    ended = threading.Event()
    is_fatal = server_model._fatal

    def fatal(error, failed):
        if (end := is_fatal(error, failed)) is not None:
            ended.set()
        return end

    monkeypatch.setattr(server_model, "_fatal", fatal)

    def answer(path, body):
        waiting.wait(200)
        if body["prompt"].endswith(f"{first}\nAnswer:"):
            return 403, {"error": "no credit"}
        assert ended.wait(200)
        return writing("blue")(path, body)

    with fake(answer) as (client, asked), pytest.raises(WrongServerError, match="no credit"):
        run(client, tmp_path, limit=4)
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
    require_refusals(*rows, of=HttpClient, errors=WrongServerError)


def tokens(*texts):
    """Tokens of these texts, the first of which nothing precedes."""
    return [Token(text, -1.0 if number else None, False) for number, text in enumerate(texts)]


@each_row(
    ("texts", "prompt", "end", "first", "merged"),
    [
        (["A", ":", " b"], "A: b", 2, " b", False),
        (["<s>", "A", ":", " b"], "A: b", 2, " b", False),  # the server's own BOS
        ([" A", ":", " b"], "A: b", 2, " b", False),  # SentencePiece's space
        (["A", ": b"], "A: b", 2, ": b", True),
        (["bytes:\\xe6\\xb0", "bytes:\\xb4", "?", " b"], "水? b", 2, " b", False),
        (["\ufffd", "\ufffd", "?", " b"], "水? b", 2, " b", False),  # vLLM's
        (["?", "bytes:\\xe6", "bytes:\\xb0\\xb4"], "?水", 1, "bytes:\\xe6", False),
        (["<s>", "b"], "b", 0, "b", False),
    ],
)
def test_an_option_begins_where_the_tokens_spell_it(texts, prompt, end, first, merged):
    number, joined = first_scored(tokens(*texts), prompt, end)
    assert (texts[number], joined) == (first, merged)


def test_tokens_that_do_not_spell_the_prompt_and_what_is_no_log_probability_are_refused():
    def scored(*texts, prompt="A: b", end=2):
        return lambda: first_scored(tokens(*texts), prompt, end)

    def read(value, top=None):
        names = ("tokens", "token_logprobs", "top_logprobs")
        return lambda: read_tokens(dict(zip(names, ([["b"], [value], [top]]), strict=True)))

    require_refusals(
        (scored(":", " b"), "do not spell"),  # the context's beginning was cut
        (scored("A", ":", " c"), "do not spell"),
        (scored("A", ":", " b", "</s>"), "do not spell"),
        (scored("?", "\ufffd", prompt="?水", end=1), "do not spell"),
        (scored("x", "y", "\ufffd", "?", " b", prompt="水? b"), "do not spell"),
        (scored("b", "c", prompt="bc", end=0), "nothing precedes it"),
        (scored(prompt="b", end=1), "do not spell"),
        (read(1000.0), "1000.0 is the log-probability of 'b': expected a number from -1000000"),
        (read(-(10**400)), "expected a number"),
        (read("-1"), "expected a number"),
        (read(-1.0, {"b": 5}), "expected a number"),
        (read(-1.0, ["b"]), "an unknown form"),
        (lambda: read_tokens({"tokens": ["b"]}), "an unknown form"),
    )


def test_characters_of_several_tokens_are_scored_as_here(live, tmp_path):
    item = Item("zh", {"question": "水是什么？🫥"}, ("H2O", "空气 🙂"), 0)
    task = replace(CHOICE, items=(item,), examples=(), premise=None)
    here = run_task(task, load_model("tiny"), tmp_path / "here").record
    there = run_task(task, ServerModel(HttpClient(live.url)), tmp_path / "there").record
    options = [record.samples[0].answer["options"] for record in (here, there)]
    for mine, theirs in zip(*options, strict=True):
        assert theirs["log_probs"] == pytest.approx(mine["log_probs"], abs=1e-4)
        assert len(theirs["tokens"]) == len(mine["tokens"])


def test_a_server_whose_tokens_cannot_be_read_is_refused_before_any_item(tmp_path):
    item = Item("zh", {"question": "water?"}, ("水", "b"), 0)
    task = replace(CHOICE, items=(item,), examples=(), premise=None)

    def answer(path, body):
        choices = []
        for number, prompt in enumerate(body["prompt"]):
            texts = [letter if letter.isascii() else "\ufffd" for letter in prompt]
            none = [None] * len(texts)
            scores = {"tokens": texts, "token_logprobs": [None, *[-1.0] * (len(texts) - 1)]}
            choices.append({"index": number, "logprobs": scores | {"top_logprobs": none}})
        return 200, {"choices": choices}

    with (
        fake(answer) as (client, asked),
        pytest.raises(RunError, match=r"do not spell the prompt.*use a server that has `echo`"),
    ):
        run(client, tmp_path, task)
    assert len(asked) == 1
    with fake(answer) as (client, _):
        ascii_only = replace(task, items=(replace(item, options=("a", "b")),))
        assert run(client, tmp_path / "a", ascii_only).failed == 0


@each_row(
    ("field", "said", "sends", "note"),
    [
        ("max_tokens", {"message": "Unsupported: 'max_tokens'"}, 16, "max_completion_tokens"),
        ("max_tokens", {"message": "no", "param": "max_tokens"}, 16, "max_completion_tokens"),
        ("stop", {"message": "Invalid 'stop': too long"}, list("QRST"), "4 of the stop strings"),
        ("temperature", "temperature must be 1", None, "it sampled as it does by default"),
    ],
)
def test_a_field_that_the_server_refuses_is_sent_otherwise_and_noted(
    field, said, sends, note, tmp_path
):
    task = replace(SHORT, stop=tuple("QRSTUV"), max_new_tokens=16)

    def answer(path, body):
        if field in body and (field != "stop" or len(body["stop"]) > 4):
            return 400, {"error": said}
        return writing("blue")(path, body)

    with fake(answer) as (client, asked):
        record = run(client, tmp_path, task, limit=3)
        assert record.failed == 0 and [note in text for text in record.notes] == [True]
        renamed = {"max_tokens": "max_completion_tokens"}.get(field, field)
        assert asked[-1][1].get(renamed) == sends
        again = run(client, tmp_path, task, limit=3)
    assert again.notes == record.notes, "nothing is asked again, and the note stays"


def test_a_refusal_that_no_other_way_helps_is_the_item_s(tmp_path):
    def answer(path, body):
        if "max_tokens" in body:
            return 400, {"error": {"message": "max_tokens is too large", "param": "max_tokens"}}
        return 400, {"error": {"message": "no field max_completion_tokens"}}

    with fake(answer) as (client, asked):
        record = run(client, tmp_path, limit=1)
    assert record.samples[0].error.endswith("answered 400: max_tokens is too large")
    assert len(asked) == 2 and record.notes == []


def test_answers_that_are_none_are_counted_by_their_kind(tmp_path):
    task = replace(SHORT, chat=True, stop=(), examples=())
    kinds = [
        ({"content": None, "reasoning_content": "2 + 3 is"}, "length"),
        ({"content": ""}, "stop"),
        ({"content": None, "refusal": "I can't help with that."}, "stop"),
        ({"content": "I would"}, "content_filter"),
        ({"content": "<think>2 + 3"}, "length"),
        ({"content": "It is bl"}, "length"),
        ({"content": "<think>red?</think>blue"}, "stop"),
    ]
    replies = iter(kinds)

    def answer(path, body):
        message, finish = next(replies)
        return 200, {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}

    with fake(answer) as (client, _):
        model = ServerModel(client, "m", at_once=1)
        record = run_task(task, model, tmp_path, limit=len(kinds)).record
    assert [note.partition(":")[0] for note in record.notes] == [
        "2 of 7 answers were refused by the server or its model",
        "1 of 7 answers end within a thought",
        "1 of 7 answers are empty and reached max_new_tokens",
        "1 of 7 answers are empty",
        "1 of 7 answers were cut, because they reached max_new_tokens",
    ]
    assert record.samples[-1].answer["extracted"]["answer"] == "blue"


def test_answers_of_other_forms_cost_an_item_and_no_traceback(tmp_path):
    choices = ({}, "x", {"text": 5}, {"text": "a" * (1 << 20) + "b"})
    forms = [*({"choices": [choice]} for choice in choices), {"choices": {}}, {"choices": []}]
    replies = iter(forms)
    with fake(lambda path, body: (200, next(replies))) as (client, _):
        model = ServerModel(client, "m", at_once=1, extra={"top_k": 1})
        record = run_task(SHORT, model, tmp_path, limit=len(forms)).record
    assert record.failed == len(forms) and record.model["extra_body"] == {"top_k": 1}
