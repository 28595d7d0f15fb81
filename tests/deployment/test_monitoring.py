"""What the log and the metrics say, and what they never contain."""

import logging
import time
from types import SimpleNamespace

import httpx
import openai
import pytest

from course_pkg.deployment.monitoring import Metrics, Throughput
from course_pkg.serving.sampling import SamplingParams
from tests.waiting import wait_until

from .live import KEY, complete, serving, tiny_engine


@pytest.fixture(scope="module")
def live():
    with serving() as running:
        yield running


def test_health_can_be_asked_without_a_body(live):
    answer = httpx.head(live.url.replace("v1", "health"))
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/chat/completions/", "/v1/chat/completions"),
        ("POST", "/v1/completion", "/v1/completions"),
        ("GET", "/models/tiny", "/v1/models"),
        ("GET", "/v1/health", "/health"),
        ("POST", "/v1/embeddings", None),
    ],
)
def test_a_wrong_path_is_told_the_right_one_or_nothing(live, caplog, method, path, meant):
    with caplog.at_level(logging.INFO, "course_pkg.access"):
        answer = httpx.request(method, live.url.removesuffix("/v1") + path, json={})
        message = answer.json()["error"]["message"]
        wait_until(lambda: message in caplog.text)
    assert answer.status_code == 404
    hint = f": did you mean {meant}?" if meant else ""
    assert message.startswith(f"there is no such path{hint}")
    assert ("did you mean" in message) == (meant is not None)
    assert message.endswith("ends in /v1") == (meant is not None and meant.startswith("/v1/"))


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "SECRET", "temperature": -1},
        {"prompt": "a", "SECRET": 1},
        {"prompt": "a", "logit_bias": {"SECRET": 1}},
        {"prompt": "a", "model": "SECRET"},
        {"prompt": ["SECRET", 5]},
        {"prompt": "SECRET\ud800"},
        {"prompt": "SECRET" * 1000},
    ],
)
def test_the_log_has_the_reason_of_a_refusal_and_not_what_was_sent(live, caplog, body):
    def lines():  # a request of another test may be logged late
        messages = (record.getMessage() for record in caplog.records)
        return [line for line in messages if " POST /v1/completions " in line]

    with caplog.at_level(logging.INFO, "course_pkg.access"):
        status, _ = live.post("/v1/completions", {"model": "tiny"} | body)
        wait_until(lines)
    [line] = lines()
    assert status in (400, 404) and "SECRET" not in line
    assert line.split(" s ", 1)[1].strip()


def test_the_time_to_the_first_token_begins_when_the_request_arrives(monkeypatch):
    an_hour_ago = SimpleNamespace(monotonic=lambda: time.monotonic() - 3600)
    monkeypatch.setattr("course_pkg.deployment.guard.time", an_hour_ago)
    with serving() as live:
        complete(live.client(), max_tokens=1)
        wait_until(lambda: live.is_empty)
        name = "course_time_to_first_token_seconds_sum"
        [line] = [line for line in live.get("/metrics").splitlines() if line.startswith(name)]
        assert float(line.split()[-1]) >= 3600


def test_throughput_is_reported_while_there_is_work_and_preemptions_are_counted():
    with serving() as live:
        throughput = Throughput(live.app.state.service.thread)
        assert throughput.line(throughput._before + 1) == ""
        complete(live.client(), "abcd", max_tokens=6)
        line = throughput.line(throughput._before + 2)
        assert line.startswith("prompt 2.0 tokens/s, generation 3.0 tokens/s, running 0, waiting 0")
        assert throughput.line(throughput._before + 1) == ""
    engine = tiny_engine(blocks=4)
    metrics = Metrics(engine, lambda: 0)
    assert b"\ncourse_preemptions_total 0.0\n" in metrics.text()
    # Each ends with 20 stored tokens, in three blocks of 8, so the second has to wait.
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    requests = engine.generate(["a", "b"], params)
    assert [len(request.completions[0].tokens) for request in requests] == [20, 20]
    assert b"\ncourse_preemptions_total 1.0\n" in metrics.text()


def test_the_log_and_the_metrics_have_counts_and_no_texts(caplog):
    with serving(key=KEY) as live, caplog.at_level(logging.DEBUG):
        client = live.client(key=KEY)
        complete(client, "SECRET", max_tokens=4)
        with pytest.raises(openai.NotFoundError):
            client.get("/SECRET?key=SECRET", cast_to=object)
        with pytest.raises(openai.BadRequestError):
            complete(client, "SECRET", temperature=-1)
        wait_until(lambda: "tiny: 6 + 4 tokens" in caplog.text)
        ours = [r.getMessage() for r in caplog.records if r.name.startswith("course_pkg")]
        assert not any("SECRET" in line or KEY in line for line in ours) and len(ours) == 3
        text = live.get("/metrics", {"Authorization": f"Bearer {KEY}"})
        for line in (
            'course_http_requests_total{path="/v1/completions",status="200"} 1.0',
            'course_http_requests_total{path="/v1/completions",status="400"} 1.0',
            'course_http_requests_total{path="other",status="404"} 1.0',
            'course_prompt_tokens_total{model="tiny"} 6.0',
            'course_generation_tokens_total{model="tiny"} 4.0',
            'course_time_to_first_token_seconds_count{model="tiny"} 1.0',
            'course_time_per_output_token_seconds_count{model="tiny"} 1.0',
            "course_requests_open 0.0",
            "course_sequences_running 0.0",
            "course_preemptions_total 0.0",
            "course_kv_blocks 512.0",
            "course_kv_blocks_free 512.0",
        ):
            assert f"\n{line}\n" in text, line
