"""A judge behind a server, tested with a local server: nothing leaves this machine."""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from course_pkg.studies.judge.endpoint import EndpointJudge
from course_pkg.studies.judge.geval import JudgeError, JudgeTask, g_eval
from tests.refusals import require_refusals

from .judges import TASK

TEXTS = {"Answer": "Boil it for ten minutes."}


def place(token, **tops):
    """One position of an answer with its most likely tokens; _ in a name means a blank."""
    tops = {name.replace("_", " ").replace("n", ""): p for name, p in tops.items()}
    top = [{"token": t, "logprob": math.log(p)} for t, p in tops.items()]
    return {"token": token, "logprob": 0.0, "top_logprobs": top}


def completion(*texts, places=None):
    choices = [{"index": i, "message": {"content": text}} for i, text in enumerate(texts)]
    for choice in choices:
        choice["logprobs"] = None if places is None else {"content": places}
    return {"choices": choices}


@pytest.fixture
def server(monkeypatch):
    """A server that sends the prepared answers in order, and then repeats the last one."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            size = int(self.headers["Content-Length"])
            stub.asked.append((self.path, dict(self.headers), json.loads(self.rfile.read(size))))
            answer = stub.answers.pop(0) if len(stub.answers) > 1 else stub.answers[0]
            if callable(answer):
                answer = answer(stub.asked[-1][2])
            status, body, headers = answer if isinstance(answer, tuple) else (200, answer, {})
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args):
            pass

    stub = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.handle_error = lambda *_: None  # a client that timed out is expected
    stub.asked = []
    stub.answers = []
    stub.url = f"http://127.0.0.1:{stub.server_address[1]}/v1"
    thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield stub
    stub.shutdown()
    thread.join()
    stub.server_close()


def judge(server, **settings):
    return EndpointJudge(server.url, "stub", pause=0.0, **settings)


def test_a_score_comes_from_the_top_logprobs_of_the_first_token(server):
    server.answers = [completion("4", places=[place("4", n4=0.4, _4=0.2, n2=0.2, The=0.1)])]
    verdict = g_eval(judge(server, api_key="secret"), TASK, TEXTS)
    assert verdict.score == pytest.approx((4 * 0.6 + 2 * 0.2) / 0.8)
    assert verdict.reading.outside == pytest.approx(0.2)
    path, headers, body = server.asked[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret"
    assert body["model"] == "stub" and body["logprobs"] is True and body["top_logprobs"] == 20
    content = body["messages"][0]["content"]
    assert "Boil it" in content and content.endswith("Clarity (1-5):")


def test_blank_tokens_before_the_score_are_skipped(server):
    places = [place("\n", n1=0.9), place(" ", n1=0.9), place("5", n5=0.5, n3=0.5)]
    server.answers = [completion("\n 5", places=places)]
    assert g_eval(judge(server), TASK, TEXTS).score == pytest.approx(4)


def test_a_server_without_logprobs_is_sampled_twenty_times(server):
    for first in (
        completion("4"),
        {"choices": [{"message": {"content": "4"}}]},
        completion("4", places=[]),
        (400, {"error": {"message": "logprobs are not supported"}}, {}),
    ):
        server.asked.clear()
        server.answers = [first, lambda body: completion(*["4", "2"] * (body["n"] // 2))]
        verdict = g_eval(judge(server), TASK, TEXTS)
        assert verdict.score == pytest.approx(3)
        assert (verdict.reading.method, verdict.reading.samples) == ("samples", 20)
        assert server.asked[1][2]["n"] == 20 and server.asked[1][2]["temperature"] == 1.0


def test_a_server_that_sends_one_answer_at_a_time_is_asked_with_different_seeds(server):
    server.answers = [lambda body: completion(str(1 + body["seed"] % 5))]
    verdict = g_eval(judge(server), TASK, TEXTS, method="samples", samples=5, seed=10)
    assert verdict.score == pytest.approx(3)
    assert "Authorization" not in server.asked[0][1]  # no key was given
    assert [body["seed"] for _, _, body in server.asked] == [10, 11, 12, 13, 14]


def test_a_scale_to_ten_raises_an_error_but_can_be_sampled(server):
    task = JudgeTask("Rate.", "Clarity", "1 is confusing.", tuple(range(1, 11)))
    with pytest.raises(JudgeError, match=r"can't tell 1 from 10.*samples"):
        g_eval(judge(server), task, TEXTS)
    assert server.asked == []
    server.answers = [lambda body: completion(*["10", "1"][: body["n"]])]
    assert g_eval(judge(server), task, TEXTS, method="samples", samples=2).score == 5.5


def test_an_error_names_the_tokens_if_none_is_a_score(server):
    server.answers = [completion("The", places=[place("The", The=0.9, I=0.1)])]
    with pytest.raises(JudgeError, match=r"'The', 'I'.*ask for the answer alone"):
        g_eval(judge(server), TASK, TEXTS)


def test_a_temporary_failure_is_retried(server):
    for status in (408, 429, 500):
        server.asked.clear()
        good = completion("4", places=[place("4", n4=1.0)])
        server.answers = [(status, b"busy", {}), (status, b"busy", {}), good]
        assert g_eval(judge(server), TASK, TEXTS).score == 4
        assert len(server.asked) == 3


def test_a_permanent_failure_raises_an_error_after_the_last_retry(server):
    server.answers = [(503, b"overloaded", {})]
    with pytest.raises(JudgeError, match=r"answered 503: overloaded \(asked 4 times\)"):
        g_eval(judge(server, retries=3), TASK, TEXTS)
    assert len(server.asked) == 4


def test_a_refused_request_is_not_retried_and_a_redirect_is_not_followed(server):
    for status in (400, 401, 404, 301, 302, 303, 307):
        server.asked.clear()
        server.answers = [(status, b"no such model", {"Location": f"{server.url}/elsewhere"})]
        with pytest.raises(JudgeError, match=f"answered {status}: no such model"):
            g_eval(judge(server, api_key="secret"), TASK, TEXTS)  # the key is not sent elsewhere
        assert [path for path, _, _ in server.asked] == ["/v1/chat/completions"]


def first(**token):
    """An answer whose only token has these fields."""
    return {"choices": [{"logprobs": {"content": [token]}}]}


def likely(token, logprob):
    """An answer whose only token has one likely alternative."""
    return first(token="4", top_logprobs=[{"token": token, "logprob": logprob}])


def test_an_invalid_answer_raises_an_error(server):
    for answer, message in (
        (b"<html>hello</html>", "must send a JSON object, got"),
        ({"choices": []}, "must send a chat completion, got"),
        ([1, 2], "must send a JSON object, got"),
        (first(tok="4"), "unknown format"),
        (first(token="4", top_logprobs=[1]), "unknown format"),
        ({"choices": [{"text": "4"}]}, "without a message"),
        (likely("4", 1e6), "unknown format"),
        (likely("4", 3.0), "unknown format"),
        (likely(None, -0.1), "unknown format"),
        ({"choices": [{"message": {"content": [{"type": "text", "text": "4"}]}}]}, "as a string"),
        (b"[" * 100_000, "must send a JSON object, got"),
        ((500, b"busy", {"Content-Length": 500}), "answered 500"),
    ):
        server.answers = [answer]
        with pytest.raises(JudgeError, match=message):
            g_eval(judge(server), TASK, TEXTS)


def test_a_server_that_does_not_answer_or_is_too_slow_raises_an_error(server):
    hold = threading.Event()
    server.answers = [lambda _: hold.wait(300) and completion("4")]
    with pytest.raises(JudgeError, match="timed out"):
        g_eval(judge(server, retries=0, timeout=0.1), TASK, TEXTS)
    hold.set()
    server.shutdown()
    server.server_close()
    with pytest.raises(JudgeError, match=r"does not answer: .*\(asked 2 times\)"):
        g_eval(judge(server, retries=1), TASK, TEXTS)


def test_invalid_settings_raise_an_error_that_names_them():
    require_refusals(
        ({"url": "localhost:8000"}, "the address must be like"),
        ({"url": "http://"}, "the address must be like"),
        ({"url": "file:///etc"}, "the address must be like"),
        ({"timeout": 0}, "timeout must be "),
        ({"retries": -1}, "retries must be "),
        ({"pause": float("nan")}, "pause must be "),
        ({"model": None}, "TypeError: model must be "),
        of=lambda change: EndpointJudge(**{"url": "http://localhost/v1", "model": "m"} | change),
        errors=(TypeError, ValueError),
    )
