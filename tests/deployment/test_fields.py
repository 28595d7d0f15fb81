"""Further fields of OpenAI's API, the places of samples, and what the log says."""

import logging
import math
import time

import httpx
import openai
import pytest
import torch

from course_pkg.deployment.throughput import Throughput
from course_pkg.finetuning.formats import chat_prompt
from course_pkg.serving.request import SamplingParams

from .live import MODEL, serving, tiny_engine, wait_until

GREEDY = {"model": "tiny", "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def live():
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def client(live):
    return live.client()


def engine_text(prompt, **params):
    given = SamplingParams(**{"temperature": 0, "max_tokens": 9, "ignore_eos": True} | params)
    return tiny_engine().generate([prompt], given)[0].completions[0]


def test_a_bias_decides_every_token(client):
    answer = client.completions.create(
        prompt="The sea", max_tokens=5, logit_bias={"65": 100}, **GREEDY
    )
    assert answer.choices[0].text == "AAAAA"


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_penalties_reach_the_engine(client, name):
    answer = client.completions.create(
        prompt="The sea", max_tokens=9, logit_bias={"65": 30}, **{name: 2.0}, **GREEDY
    )
    wanted = engine_text("The sea", logit_bias={65: 30}, **{name: 2.0})
    assert answer.choices[0].text == wanted.text


def test_echo_without_new_tokens_scores_the_prompt(client):
    fields = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1, **GREEDY}
    answer = client.completions.create(**fields)
    [choice] = answer.choices
    [wanted] = tiny_engine().generate(["abc"], SamplingParams(max_tokens=1, prompt_logprobs=1))
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(
        [each.logprob for each in wanted.prompt_logprobs[1:]], abs=1e-5
    )
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)
    [event] = client.completions.create(stream=True, **fields)
    assert event.choices[0].model_dump() == choice.model_dump()
    with pytest.raises(openai.BadRequestError, match="max_tokens is 0"):
        client.completions.create(prompt="abc", max_tokens=0, **GREEDY)


def test_developer_messages_are_system_messages(client):
    found = []
    for role in ("developer", "system"):
        turns = [{"role": role, "content": "Be kind."}, {"role": "user", "content": "Hi"}]
        answer = client.chat.completions.create(messages=turns, max_tokens=6, **GREEDY)
        found.append((answer.usage.prompt_tokens, answer.choices[0].message.content))
    assert found[0] == found[1]
    assert found[0][0] > len(MODEL.tokenizer(chat_prompt("Hi", MODEL.tokenizer)).input_ids)


def test_metadata_is_accepted_and_the_service_tier_is_the_one_that_exists(client):
    turns = [{"role": "user", "content": "Hi"}]
    fields = {"messages": turns, "max_tokens": 1, "metadata": {"run": "7"}, **GREEDY}
    assert client.chat.completions.create(service_tier="auto", **fields).service_tier == "default"
    assert client.chat.completions.create(**fields).service_tier is None


def test_requests_with_different_salts_share_no_blocks(client):
    def cached(salt):
        answer = client.completions.create(
            model="tiny", prompt=list(range(60, 100)), max_tokens=1, extra_body={"cache_salt": salt}
        )
        return answer.usage.prompt_tokens_details.cached_tokens

    assert [cached(salt) for salt in ("one", "two", "one")] == [0, 0, 32]


def test_models_say_how_long_a_sequence_may_be(client):
    assert client.models.retrieve("tiny").max_model_len == 2048


def test_health_can_be_asked_without_a_body(live):
    answer = httpx.head(live.url.replace("v1", "health"))
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_path_without_v1_is_told_the_right_one(live, caplog):
    with caplog.at_level(logging.INFO, "course_pkg.access"):
        status, answer = live.post("/chat/completions", {})
        wait_until(lambda: "did you mean /v1/chat/completions" in caplog.text)
    assert status == 404 and "did you mean /v1/chat/completions" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/completions", "/v1/completions"),
        ("POST", "/chat/completions/", "/v1/chat/completions"),
        ("POST", "/v1/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/api/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "//v1/completions", "/v1/completions"),
        ("POST", "/v1/completion", "/v1/completions"),
        ("POST", "/v1/Chat/Completions", "/v1/chat/completions"),
        ("GET", "/models", "/v1/models"),
        ("GET", "/models/tiny", "/v1/models"),
        ("GET", "/v1/health", "/health"),
        ("POST", "/nonsense", None),
        ("POST", "/v1/embeddings", None),
        ("GET", "/", None),
    ],
)
def test_a_wrong_path_is_told_the_right_one_or_nothing(live, method, path, meant):
    answer = httpx.request(method, live.url.removesuffix("/v1") + path, json={})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 404
    assert message.startswith(
        "there is no such path" + (f": did you mean {meant}?" if meant else "")
    )
    assert ("did you mean" in message) == (meant is not None)
    assert message.endswith("ends in /v1") == (meant is not None and meant.startswith("/v1/"))


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "SECRET", "temperature": -1},
        {"prompt": "a", "SECRET": 1},
        {"prompt": "a", "stop": {"SECRET": 1}},
        {"prompt": "a", "temperature": "SECRET"},
        {"prompt": "a", "logit_bias": {"SECRET": 1}},
        {"prompt": "a", "model": "SECRET"},
        {"prompt": ["SECRET", 5]},
        {"prompt": "a", "stream_options": {"SECRET": 1}},
        {"prompt": "SECRET\ud800"},
        {"prompt": "SECRET" * 1000},
    ],
)
def test_the_log_has_the_reason_of_a_refusal_and_not_what_was_sent(live, caplog, body):
    def lines():  # a request of another test may be logged late
        found = (record.getMessage() for record in caplog.records)
        return [line for line in found if " POST /v1/completions " in line]

    with caplog.at_level(logging.INFO, "course_pkg.access"):
        status, _ = live.post("/v1/completions", {"model": "tiny"} | body)
        wait_until(lines)
    [line] = lines()
    assert status in (400, 404) and "SECRET" not in line
    assert line.split(" s ", 1)[1].strip()


def test_samples_take_places():
    with serving(tiny_engine(max_sequences=4), waiting=4, choices=64) as live:
        client = live.client()
        with pytest.raises(openai.BadRequestError, match="9 samples: this server takes 8 at once"):
            client.completions.create(prompt="a", n=9, **GREEDY)
        stream = client.completions.create(prompt="a", n=6, max_tokens=1500, stream=True, **GREEDY)
        next(iter(stream))
        assert live.gate.taken == 6 and live.gate.open == 1
        with pytest.raises(openai.RateLimitError, match="6 samples are running or waiting"):
            client.completions.create(prompt=["a", "b", "c"], max_tokens=1, **GREEDY)
        assert client.completions.create(prompt="a", n=2, max_tokens=1, **GREEDY).choices
        for n in (0, -5):
            with pytest.raises(openai.BadRequestError):
                client.completions.create(prompt="a", n=n, **GREEDY)
        stream.close()
        wait_until(lambda: live.is_empty)
        assert live.gate.taken == 0


@pytest.mark.parametrize("extra", [{}, {"temperature": 0}, {"temperature": 0, "logprobs": 1}])
def test_a_request_whose_logits_are_nan_gets_an_error_and_others_their_answer(extra):
    engine = tiny_engine()
    run = engine.runner.run

    def spoiled(step, blocks):
        rows, logits = run(step, blocks)
        for entry, span in rows:
            if entry.sequence.prompt == [66]:
                logits = logits.index_fill(0, torch.arange(span.start, span.stop), math.nan)
        return rows, logits

    engine.runner.run = spoiled
    with serving(engine) as live:
        status, answer = live.post("/v1/completions", {"model": "tiny", "prompt": "B", **extra})
        assert status == 500 and answer["error"]["type"] == "server_error"
        assert live.post("/v1/completions", {"model": "tiny", "prompt": "A", **extra})[0] == 200


def test_the_time_to_the_first_token_begins_when_the_request_arrives(monkeypatch):
    def slow(tokenizer, text, **options):
        time.sleep(0.3)
        return tokenizer(text).input_ids

    monkeypatch.setattr("course_pkg.deployment.service._ids", slow)
    with serving() as live:
        live.client().completions.create(prompt="a", max_tokens=1, **GREEDY)
        wait_until(lambda: live.is_empty)
        name = "course_time_to_first_token_seconds_sum"
        [line] = [line for line in live.get("/metrics").splitlines() if line.startswith(name)]
        assert float(line.split()[-1]) >= 0.3


def test_a_prompt_with_too_many_bytes_is_refused_without_encoding_it(monkeypatch):
    def never(*_, **__):
        raise AssertionError("it is encoded")

    monkeypatch.setattr("course_pkg.deployment.service._ids", never)
    with serving() as live:
        turns = [{"role": "user", "content": "a b " * 100_000}]
        for ask in (
            lambda client: client.completions.create(prompt="a b " * 100_000, **GREEDY),
            lambda client: client.chat.completions.create(messages=turns, **GREEDY),
        ):
            with pytest.raises(openai.BadRequestError, match=r"at least 20000\d tokens") as long:
                ask(live.client())
            assert long.value.code == "context_length_exceeded"


def test_web_pages_of_allowed_origins_may_ask():
    ask = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    with serving(origins=["https://good.example"]) as live:
        for origin, allowed in {
            "https://good.example": True,
            "https://evil.example": False,
        }.items():
            answer = httpx.options(f"{live.url}/completions", headers={"Origin": origin, **ask})
            assert (answer.headers.get("access-control-allow-origin") == origin) == allowed
            assert (answer.status_code == 200) == allowed
    with serving() as live:
        answer = httpx.get(f"{live.url}/models", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers


def test_throughput_is_reported_while_there_is_work():
    with serving() as live:
        throughput = Throughput(live.app.state.service.thread)
        assert throughput.line(throughput._before + 1) == ""
        live.client().completions.create(prompt="abcd", max_tokens=6, **GREEDY)
        line = throughput.line(throughput._before + 2)
        assert line.startswith("prompt 2.0 tokens/s, generation 3.0 tokens/s, running 0, waiting 0")
        assert throughput.line(throughput._before + 1) == ""
