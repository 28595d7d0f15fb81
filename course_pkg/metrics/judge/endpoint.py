"""A judging model behind an OpenAI-compatible server, by its address.

It asks /chat/completions for the likeliest first tokens, or for whole answers. There is no default
address: nothing is sent anywhere that you did not name. Only the standard library is used.

Chapter: metrics/judge.
"""

import http.client
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Sequence

from course_pkg.metrics.judge.geval import JudgeError, add_up


class EndpointJudge:
    """A judge behind any server that speaks OpenAI's chat completions.

    url: its address up to the version, such as "http://localhost:8000/v1". model: the name that
    the server knows. api_key: sent as a bearer token, if given. timeout: seconds for one request.
    retries: how often a request is repeated after a refused or broken connection, a timeout, or
    the statuses 408, 429 and 5xx. pause: seconds before the first repetition; doubled each time.
    Raises ValueError for what is no http(s) address or a negative number; JudgeError, in calls,
    for what the server refuses or answers wrongly. Redirects are not followed.

    >>> EndpointJudge("http://localhost:8000/v1", "my-model").address
    'http://localhost:8000/v1/chat/completions'
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 2,
        pause: float = 1.0,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f'url must be like "http://localhost:8000/v1", got {url!r}')
        if timeout <= 0 or retries < 0 or pause < 0:
            raise ValueError(
                "timeout must be positive, retries and pause at least 0, "
                f"got {timeout}, {retries} and {pause}"
            )
        self.address = f"{url.rstrip('/')}/chat/completions"
        self.model, self.api_key = model, api_key
        self.timeout, self.retries, self.pause = timeout, retries, pause
        self._opener = urllib.request.build_opener(_NoRedirects)

    def option_probabilities(
        self, prompt: str, start: str, options: Sequence[str]
    ) -> dict[str, float] | None:
        """From the 20 likeliest tokens where the answer begins; None if the server sends none.

        Blank tokens before the answer are passed over. Raises JudgeError for options of which one
        begins another, such as 1 and 10 (one token can't tell them apart), and if no option is
        among the tokens.
        """
        for short in options:
            if longer := [o for o in options if o != short and o.startswith(short)]:
                raise JudgeError(
                    f"the first token can't tell {short} from {longer[0]}: take scores up to 9, "
                    'or method="samples"'
                )
        body = {"max_tokens": 4, "temperature": 1.0, "seed": 0, "logprobs": True}
        try:
            choice = self._ask(f"{prompt}\n{start}", body | {"top_logprobs": 20})[0]
        except _Refused as error:
            if "logprob" in str(error):
                return None
            raise
        try:
            places = (choice.get("logprobs") or {}).get("content") or []
            place = next((place for place in places if place["token"].strip()), None)
            if place is None or not place.get("top_logprobs"):
                return None
            tokens: Counter[str] = Counter()
            for top in place["top_logprobs"]:
                tokens[top["token"].strip()] += math.exp(top["logprob"])
            if not tokens.total() <= 1.01:  # or nan
                raise ValueError("more than 1 in all")
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise JudgeError(f"{self.address} sent log-probabilities of another form") from error
        found = add_up(tokens, options)
        if not sum(found.values()):
            raise JudgeError(
                f"the answer begins with none of {list(options)} but with "
                f"{[token for token, _ in tokens.most_common(5)]}; ask for the answer alone"
            )
        return found

    def write(
        self,
        prompt: str,
        start: str = "",
        *,
        n: int = 1,
        max_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        """n answers; a server that sends fewer at a time is asked again, with another seed."""
        replies: list[str] = []
        while len(replies) < n:
            body = {"max_tokens": max_tokens, "temperature": temperature, "n": n - len(replies)}
            choices = self._ask(f"{prompt}\n{start}", body | {"seed": seed + len(replies)})
            try:
                texts = [choice["message"]["content"] or "" for choice in choices]
            except (KeyError, TypeError) as error:
                raise JudgeError(f"{self.address} sent a choice without a message") from error
            if odd := [text for text in texts if not isinstance(text, str)]:
                raise JudgeError(f"{self.address} sent a message that is no text: {odd[0]!r:.80}")
            replies += texts
        return replies[:n]

    def _ask(self, content: str, settings: dict) -> list[dict]:
        """The choices of the server's answer."""
        turns = [{"role": "user", "content": content}]
        body = json.dumps({"model": self.model, "messages": turns} | settings)
        text = self._post(body.encode())
        try:
            choices = json.loads(text)["choices"]
            if not isinstance(choices, list) or not choices:
                raise ValueError("no choices")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise JudgeError(f"{self.address} sent no chat completion: {text[:200]!r}") from error
        return choices

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(self.address, body, headers, method="POST")
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.pause * 2 ** (attempt - 1))
            try:
                with self._opener.open(request, timeout=self.timeout) as answer:
                    return answer.read()
            except urllib.error.HTTPError as error:
                trouble = f"{self.address} answered {error.code}: {_said(error)}"
                if error.code not in (408, 429) and error.code < 500:
                    raise _Refused(trouble) from None
            except (OSError, http.client.HTTPException) as error:
                trouble = f"{self.address} does not answer: {getattr(error, 'reason', error)}"
        raise JudgeError(f"{trouble} (asked {self.retries + 1} times)")


def _said(error: urllib.error.HTTPError) -> str:
    """How the text that came with an error begins, as far as it came."""
    try:
        return error.read(300).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return "(the rest did not arrive)"


class _Refused(JudgeError):
    """The server understood the request and will not do it."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the texts and the key go to the named address alone."""

    def redirect_request(self, *_args) -> None:
        return None
