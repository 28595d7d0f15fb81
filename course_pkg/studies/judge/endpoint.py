"""A judge model behind an OpenAI-compatible server. There is no default address."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

from course_pkg.common.arguments import require_between, require_integer, require_string
from course_pkg.common.errors import CourseError
from course_pkg.common.http_client import HttpClient, RefusedError
from course_pkg.studies.judge.geval import JudgeError, add_up


@dataclass
class EndpointJudge:
    """A judge behind any server with OpenAI's chat completions API.

    Attributes:
        url: the server's address up to the version, such as "http://localhost:8000/v1".
        timeout: seconds for one request.
        retries: after a broken connection, a timeout, or the statuses 408, 429 and 5xx.
        pause: seconds before the first retry; doubled each time.
    """

    url: str
    model: str
    _: KW_ONLY
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    retries: int = 2
    pause: float = 1.0

    def __post_init__(self) -> None:
        require_string(self.url, "url")
        require_string(self.model, "model")
        require_integer(self.retries, "retries", 0)
        require_between(self.timeout, "timeout", 0, math.inf)
        require_between(self.pause, "pause", 0, math.inf, closed=True)
        settings = {"timeout": self.timeout, "retries": self.retries, "pause": self.pause}
        self._client = HttpClient(self.url, self.api_key, **settings)
        self.address = f"{self._client.address}/chat/completions"

    def option_probabilities(
        self, prompt: str, start: str, options: Sequence[str]
    ) -> dict[str, float] | None:
        """Read the 20 most likely first tokens of the answer; None if the server sends none."""
        for short in options:
            if longer := [o for o in options if o != short and o.startswith(short)]:
                raise JudgeError(
                    f"the first token can't tell {short} from {longer[0]}: use scores up to 9, "
                    'or method="samples"'
                )
        body = {"max_tokens": 4, "temperature": 1.0, "seed": 0, "logprobs": True}
        try:
            choice = self._ask(f"{prompt}\n{start}", body | {"top_logprobs": 20})[0]
        except RefusedError as error:
            if any(map(error.names, ("logprobs", "top_logprobs"))):
                return None
            raise JudgeError(str(error)) from None
        try:
            places = (choice.get("logprobs") or {}).get("content") or []
            place = next((place for place in places if place["token"].strip()), None)
            if place is None or not place.get("top_logprobs"):
                return None
            tokens: Counter[str] = Counter()
            for top in place["top_logprobs"]:
                tokens[top["token"].strip()] += math.exp(top["logprob"])
            if not tokens.total() <= 1.01:  # or nan
                raise ValueError("the probabilities add up to more than 1")
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            message = (
                f'{self.address} sent an unknown format of log-probabilities; use method="samples"'
            )
            raise JudgeError(message) from error
        probabilities = add_up(tokens, options)
        if not sum(probabilities.values()):
            raise JudgeError(
                f"the answer must begin with one of {list(options)}, its most likely tokens are "
                f"{[token for token, _ in tokens.most_common(5)]}; ask for the answer alone"
            )
        return probabilities

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
        """Return n answers; if the server sends fewer at a time, ask again with another seed."""
        replies: list[str] = []
        while len(replies) < n:
            body = {"max_tokens": max_tokens, "temperature": temperature, "n": n - len(replies)}
            try:
                choices = self._ask(f"{prompt}\n{start}", body | {"seed": seed + len(replies)})
                texts = [choice["message"]["content"] or "" for choice in choices]
            except RefusedError as error:
                raise JudgeError(str(error)) from None
            except (KeyError, TypeError) as error:
                raise JudgeError(f"{self.address} sent a choice without a message") from error
            if wrong := [text for text in texts if not isinstance(text, str)]:
                raise JudgeError(f"{self.address} sent a message not as a string: {wrong[0]!r:.80}")
            replies += texts
        return replies[:n]

    def _ask(self, content: str, settings: dict) -> list[dict]:
        """The choices in the server's answer."""
        turns = [{"role": "user", "content": content}]
        body = {"model": self.model, "messages": turns} | settings
        try:
            answer = self._client.post("/chat/completions", body)
        except CourseError as error:
            raise JudgeError(str(error)) from None
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices:
            raise JudgeError(f"{self.address} must send a chat completion, got {answer!r:.200}")
        return choices
