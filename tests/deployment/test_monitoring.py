"""What the log and the metrics say, and what they never contain."""

import logging
import time

import httpx
import openai
import pytest

from course_pkg.deployment.monitoring import Throughput

from .live import complete, serving, wait_until

KEY = "a-key-of-at-least-16-characters"


@pytest.fixture(scope="module")
def live():
    with serving() as running:
        yield running


def test_health_can_be_asked_without_a_body(live):
    answer = httpx.head(live.url.replace("v1", "health"))
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_path_without_v1_is_told_the_right_one(live, caplog):
    with caplog.at_level(logging.INFO, "course_pkg.access"):
        status, answer = live.post("/chat/completions", {})
        wait_until(lambda: "did you mean /v1/chat/completions" in caplog.text)
    assert status == 404 and "did you mean /v1/chat/completions" in answer["error"]["message"]
    assert "did you mean" not in live.post("/nonsense", {})[1]["error"]["message"]


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
    with caplog.at_level(logging.INFO, "course_pkg.access"):
        status, _ = live.post("/v1/completions", {"model": "tiny"} | body)
        wait_until(lambda: caplog.records)
    [line] = [record.getMessage() for record in caplog.records]
    assert status in (400, 404) and "SECRET" not in line
    assert line.split(" s ", 1)[1].strip()


def test_the_time_to_the_first_token_begins_when_the_request_arrives(monkeypatch):
    def slow(tokenizer, text, **options):
        time.sleep(0.3)
        return tokenizer(text).input_ids

    monkeypatch.setattr("course_pkg.deployment.service._ids", slow)
    with serving() as live:
        complete(live.client(), max_tokens=1)
        wait_until(lambda: live.is_empty)
        name = "course_time_to_first_token_seconds_sum"
        [line] = [line for line in live.get("/metrics").splitlines() if line.startswith(name)]
        assert float(line.split()[-1]) >= 0.3


def test_throughput_is_reported_while_there_is_work():
    with serving() as live:
        throughput = Throughput(live.app.state.service.thread)
        assert throughput.line(throughput._before + 1) == ""
        complete(live.client(), "abcd", max_tokens=6)
        line = throughput.line(throughput._before + 2)
        assert line.startswith("prompt 2.0 tokens/s, generation 3.0 tokens/s, running 0, waiting 0")
        assert throughput.line(throughput._before + 1) == ""


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
            "course_kv_blocks 512.0",
            "course_kv_blocks_free 512.0",
        ):
            assert f"\n{line}\n" in text, line
