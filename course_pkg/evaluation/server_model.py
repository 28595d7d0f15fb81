"""Answers of a model behind an OpenAI-compatible address, such as that of `course serve`.

Texts come from /completions, or from /chat/completions for a task that asks by chat. Options need
the log-probabilities of a prompt's own tokens: /completions with `echo` and `max_tokens` 0. `course
serve` has it and many services don't; a server without it is one error before any item. A token
that joins context and option is scored too (`option_boundary`).

There is no default address. Only the standard library is used, and redirects are not followed.
Chapter: evaluation/likelihood-and-generation.
"""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from course_pkg.evaluation.generation import OpenQuestion
from course_pkg.evaluation.greedy import Generation, first_stop
from course_pkg.evaluation.http_client import HttpClient, RefusedError
from course_pkg.evaluation.multiple_choice import Question, ScoredOption, ScoredQuestion
from course_pkg.evaluation.run_errors import RunError, ServerError
from course_pkg.evaluation.samples import Answer, Request
from course_pkg.evaluation.task import CHOICE, Task

AT_ONCE = 8  # requests
MOST_FAILED = 20  # requests in a row; then it is the server's fault, not the items'
NO_LOG_PROBS = (
    "{address} does not give the log-probabilities of a prompt's tokens, which a multiple-choice "
    "task needs ({reason}): use a server that has `echo` with `logprobs`, such as course serve or "
    "vLLM, or a task with [generation]"
)


class ServerModel:
    """A model at an address. name: on the server; None asks the server for its only one.

    Raises RunError if the server has several models, or none of this name; ServerError if it
    does not answer.
    """

    def __init__(self, client: HttpClient, name: str | None = None):
        self.client = client
        self.name = name or self._only_model()
        self.tokenizer = None

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two runs runs of the same model, as far as one can know it from outside."""
        return {"model": self.name, "address": self.client.address}

    def answers(
        self, task: Task, requests: Sequence[Request]
    ) -> Iterator[list[tuple[Request, Answer | Exception]]]:
        """The answer to each request, or the error that it ended in, as they arrive.

        Raises ServerError if the server stops answering, RunError if it can't do such a task.
        """
        if task.kind == CHOICE and requests:
            self._require_log_probs(task)
        stopped = threading.Event()
        pool = ThreadPoolExecutor(AT_ONCE)
        fatal: Exception | None = None
        failed = 0

        def answer(request: Request) -> Answer:
            if stopped.is_set():
                raise RefusedError("not asked, because the run has stopped")
            return self._answer(task, request)

        try:
            running = {pool.submit(answer, request): request for request in requests}
            for done in as_completed(running):
                error = done.exception()
                failed = 0 if error is None else failed + 1
                if fatal is None:
                    fatal = _fatal(error, failed)
                if fatal is not None:
                    stopped.set()  # what has been asked may still be answered
                if error is None:
                    yield [(running[done], done.result())]
                elif fatal is None and isinstance(error, Exception):
                    yield [(running[done], error)]
        finally:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
        if fatal is not None:
            raise fatal

    def _answer(self, task: Task, request: Request) -> Answer:
        question = request.question
        if isinstance(question, OpenQuestion):
            return self._write(task, request, question)
        return self._score(task, question)

    def _write(self, task: Task, request: Request, question: OpenQuestion) -> Generation:
        settings = {"max_tokens": task.max_new_tokens, "temperature": 0}
        if task.stop:
            settings["stop"] = list(task.stop)
        if request.turns:
            body = settings | {"messages": [dict(turn) for turn in request.turns]}
            choice = self._choices("/chat/completions", body)[0]
            text = choice["message"].get("content") or ""
        else:
            choice = self._choices("/completions", settings | {"prompt": question.prompt})[0]
            text = choice["text"]
        if not isinstance(text, str):
            raise ValueError(f"the server sent {text!r:.80} in place of a text")
        stop = first_stop(text, task.stop)  # some servers leave the stop string in the text
        if stop is not None:
            return Generation(text[: stop[0]], (), "stop", stop[1])
        return Generation(text, (), "length" if choice.get("finish_reason") == "length" else "end")

    def _score(self, task: Task, question: Question) -> ScoredQuestion:
        options = self._options(question.context, question)
        if task.premise is not None:
            alone = [option.log_prob for option in self._options(task.premise, question)]
        else:
            alone = [None] * len(options)
        rows = zip(options, alone, strict=True)
        scored = [
            ScoredOption(each.text, each.tokens, each.log_probs, each.greedy, each.merged, log_prob)
            for each, log_prob in rows
        ]
        return ScoredQuestion(question, tuple(scored))

    def _options(self, context: str, question: Question) -> list[ScoredOption]:
        """The options after a context; all begin at the same character of it."""
        bare = context.rstrip()
        begin = context[len(bare) :] + question.delimiter
        prompts = [bare + begin + option for option in question.options]
        body = {"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
        choices = self._choices("/completions", body)
        if len(choices) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts were sent, but {len(choices)} came back")
        choices.sort(key=lambda choice: choice["index"])
        found = [
            _tokens(choice["logprobs"], prompt)
            for choice, prompt in zip(choices, prompts, strict=True)
        ]
        starts = [first_scored(tokens, len(bare)) for tokens in found]
        start = min(starts)
        return [
            _option(option, tokens[start:], len(bare))
            for option, tokens in zip(question.options, found, strict=True)
        ]

    def _require_log_probs(self, task: Task) -> None:
        """Raise RunError unless the server scores a short prompt."""
        if task.chat:
            reason = "the task asks by chat"
        else:
            try:
                self._options("A:", Question("A:", ("b", "c"), 0))
                return
            except (RefusedError, ValueError, KeyError, TypeError, IndexError) as error:
                reason = str(error)
        raise RunError(NO_LOG_PROBS.format(address=self.client.address, reason=reason))

    def _choices(self, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        answer = self.client.post(path, {"model": self.name, **body})
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"{self.client.address} sent no choices: {str(answer)[:200]}")
        return choices

    def _only_model(self) -> str:
        try:
            names = [each["id"] for each in self.client.get("/models")["data"]]
        except (RefusedError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{self.client.address} does not say which models it has ({error}): name one with "
                "--served-model-name"
            ) from None
        if len(names) != 1:
            raise RunError(
                f"{self.client.address} has {', '.join(names) or 'no model'}: name one with "
                "--served-model-name"
            )
        return names[0]


def _fatal(error: BaseException | None, failed: int) -> Exception | None:
    """The error that ends a run, after so many failures in a row; None if it can go on."""
    if isinstance(error, ServerError | RunError):
        return error
    if failed == MOST_FAILED:
        return ServerError(
            f"{failed} requests in a row failed, the last one because {error}: see the server's "
            "log, and run the same command again"
        )
    return None


Token = tuple[str, int, float | None, bool]  # text, offset, log-probability, most probable


def first_scored(tokens: Sequence[Token], end: int) -> int:
    """The first token that reaches beyond the context's end: the option's, or a merged one.

    end: the length of the context in characters. Raises ValueError if there is none.

    >>> tokens = [("Ans", 0, None, False), (":", 3, -1.0, True), (" x", 4, -2.0, True)]
    >>> first_scored(tokens, 4), first_scored(tokens, 5)  # 5: the context's end has merged
    (2, 2)
    """
    for number, (text, offset, log_prob, _) in enumerate(tokens):
        if offset + max(len(text), 1) > end:
            if log_prob is None:
                break
            return number
    raise ValueError("the option has no log-probability: nothing precedes it, or it has no token")


def _tokens(log_probs: Mapping[str, Any], prompt: str) -> list[Token]:
    """The tokens of a prompt, without a BOS that the server has put before it."""
    rows = zip(
        log_probs["tokens"],
        log_probs["text_offset"],
        log_probs["token_logprobs"],
        log_probs["top_logprobs"],
        strict=True,
    )
    found: list[Token] = []
    for text, offset, log_prob, top in rows:
        if log_prob is not None and not math.isfinite(log_prob):
            raise ValueError(f"the log-probability of {text!r} is {log_prob}")
        best = log_prob is not None and log_prob >= max((top or {}).values(), default=-math.inf)
        found.append((text, offset, log_prob, best))
    if len(found) > 1 and not prompt.startswith(found[0][0]):  # the offsets may count it
        shift = found[1][1]
        found = [(text, offset - shift, *rest) for text, offset, *rest in found[1:]]
    return found


def _option(text: str, tokens: Sequence[Token], end: int) -> ScoredOption:
    first, offset, _, _ = tokens[0]
    return ScoredOption(
        text,
        tuple(token for token, _, _, _ in tokens),
        tuple(float(log_prob) for _, _, log_prob, _ in tokens if log_prob is not None),
        all(best for _, _, _, best in tokens),
        first if offset < end else None,
    )
