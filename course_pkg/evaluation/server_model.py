"""Answers of a model behind an OpenAI-compatible address, such as that of `course serve`.

Options need the log-probabilities of a prompt's own tokens: /completions with `echo` and
`max_tokens` 0, which many services lack. The server isn't trusted: see `common.http_client`.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from course_pkg.common.http_client import HttpClient, RefusedError, ServerError, WrongServerError
from course_pkg.evaluation.continuation_scores import Progress, silent
from course_pkg.evaluation.generation import OpenQuestion
from course_pkg.evaluation.greedy import Generation, first_stop
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, ScoredOption, ScoredQuestion
from course_pkg.evaluation.run_errors import RunError
from course_pkg.evaluation.samples import Answer, ItemRequest
from course_pkg.evaluation.scored_tokens import Token, first_scored, read_tokens
from course_pkg.evaluation.task import CHOICE, Task

AT_ONCE = 8  # requests
MOST_FAILED = 20  # requests in a row; then it is the server's fault, not the items'
MOST_STOPS = 4  # OpenAI's limit
RENAMED = "max_completion_tokens"  # the name of max_tokens in OpenAI's newer models
MOST_CHARACTERS = 1 << 20  # of an answer
WRONG_FIELD = (400, 422)  # statuses
PROBE_CHARACTERS = 30
NO_LOG_PROBS = (
    "{address} does not give the log-probabilities of a prompt's tokens, which a multiple-choice "
    "task needs ({reason}): use a server that has `echo` with `logprobs`, such as course serve or "
    "vLLM, or a task with [generation]"
)
Fields = Mapping[str, Any]


# By the field that a server refuses: what is asked instead, and the note.
CHANGES: Mapping[str, tuple[Callable[[Fields], Fields], str]] = {
    "max_tokens": (
        lambda body: {RENAMED if k == "max_tokens" else k: v for k, v in body.items()},
        f"the server has {RENAMED} in place of max_tokens",
    ),
    "stop": (
        lambda body: {k: v[:MOST_STOPS] if k == "stop" else v for k, v in body.items()},
        f"the server was sent {MOST_STOPS} of the stop strings; all are used",
    ),
    "temperature": (
        lambda body: {k: v for k, v in body.items() if k != "temperature"},
        "the server takes no temperature: it sampled as it does by default",
    ),
}


class ServerModel:
    """A model at an address. Raises RunError unless the server has it, or without a name just one.

    at_once: requests. extra: further fields of each body, which win over the task's.
    """

    def __init__(
        self,
        client: HttpClient,
        name: str | None = None,
        *,
        at_once: int = AT_ONCE,
        extra: Fields | None = None,
    ):
        self.client = client
        self.name = name or self._only_model()
        self.tokenizer = None
        self._at_once = at_once
        self._extra = dict(extra or {})
        self._changed: set[str] = set()  # fields

    @property
    def identity(self) -> dict[str, Any]:
        about = {"model": self.name, "address": self.client.address}
        return about | ({"extra_body": self._extra} if self._extra else {})

    @property
    def notes(self) -> tuple[str, ...]:
        """How the server is asked otherwise than the task says."""
        return tuple(note for field, (_, note) in CHANGES.items() if field in self._changed)

    def answers(
        self, task: Task, requests: Sequence[ItemRequest], progress: Progress = silent
    ) -> Iterator[list[tuple[ItemRequest, Answer | Exception]]]:
        """As they arrive. Raises ServerError, WrongServerError or RunError, which end the run."""
        if task.kind == CHOICE and requests:
            self._require_log_probs(task, requests)
        stopped = threading.Event()
        pool = ThreadPoolExecutor(self._at_once)
        fatal: Exception | None = None
        failed = 0

        def answer(request: ItemRequest) -> Answer:
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
        except BaseException:
            self.client.close()
            raise
        finally:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
        if fatal is not None:
            raise fatal

    def _answer(self, task: Task, request: ItemRequest) -> Answer:
        question = request.question
        with _known_form():
            if isinstance(question, OpenQuestion):
                return self._write(task, request, question)
            return self._score(task, question)

    def _write(self, task: Task, request: ItemRequest, question: OpenQuestion) -> Generation:
        settings: dict[str, Any] = {"max_tokens": task.max_new_tokens, "temperature": 0}
        if task.stop:
            settings["stop"] = list(task.stop)
        refusal = None
        if request.turns:
            body = settings | {"messages": [dict(turn) for turn in request.turns]}
            choice = self._choices("/chat/completions", body)[0]
            text = choice["message"].get("content") or ""
            refusal = choice["message"].get("refusal")
        else:
            choice = self._choices("/completions", settings | {"prompt": question.prompt})[0]
            text = choice["text"]
        if not isinstance(text, str):
            raise ValueError(f"the server sent {text!r:.80} in place of a text")
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"the server sent a text of {len(text):,} characters")
        stop = first_stop(text, task.stop)  # some servers leave the stop string in the text
        if stop is not None:
            return Generation(text[: stop[0]], (), "stop", stop[1], self.notes)
        finish = _finish(choice.get("finish_reason"), refusal)
        return Generation(text, (), finish, notes=self.notes)

    def _score(self, task: Task, question: ChoiceQuestion) -> ScoredQuestion:
        options = self._options(question.context, question)
        if task.premise is not None:
            alone = self._options(task.premise, question)
            options = [
                replace(option, unconditional=bare.log_prob)
                for option, bare in zip(options, alone, strict=True)
            ]
        return ScoredQuestion(question, tuple(options))

    def _options(self, context: str, question: ChoiceQuestion) -> list[ScoredOption]:
        """The options after a context; all begin at the same token of it."""
        bare = context.rstrip()
        begin = context[len(bare) :] + question.delimiter
        prompts = [bare + begin + option for option in question.options]
        body = {"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
        choices = {choice["index"]: choice for choice in self._choices("/completions", body)}
        if sorted(choices) != list(range(len(prompts))):
            raise ValueError(f"{len(prompts)} prompts were sent, but {len(choices)} came back")
        token_lists = [read_tokens(choices[number]["logprobs"]) for number in range(len(prompts))]
        starts = [
            first_scored(tokens, prompt, len(bare))
            for tokens, prompt in zip(token_lists, prompts, strict=True)
        ]
        start = min(first for first, _ in starts)
        return [
            _option(option, tokens[start:], tokens[first].text if merged else None)
            for option, tokens, (first, merged) in zip(
                question.options, token_lists, starts, strict=True
            )
        ]

    def _require_log_probs(self, task: Task, requests: Sequence[ItemRequest]) -> None:
        """Raise RunError unless the server scores a short prompt, with the items' characters."""
        if task.chat:
            reason = "the task asks by chat"
        else:
            try:
                with _known_form():
                    probe = _probe(requests)
                    self._options(probe.context, probe)
                return
            except WrongServerError:
                raise
            except (RefusedError, ValueError) as error:
                reason = str(error)
        raise RunError(NO_LOG_PROBS.format(address=self.client.address, reason=reason))

    def _choices(self, path: str, body: Fields) -> list[dict[str, Any]]:
        answer = self.ask(path, body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"{self.client.address} sent no choices: {str(answer)[:200]}")
        return choices

    def ask(self, path: str, body: Fields) -> Fields:
        """The answer to a request; it is sent in another way if the server calls a field wrong."""
        changed = set(self._changed)
        first: RefusedError | None = None
        while True:
            asked = body
            for field in changed:
                asked = CHANGES[field][0](asked)
            try:
                answer = self.client.post(path, {"model": self.name, **asked, **self._extra})
            except RefusedError as error:
                first = first or error
                field = _wrong_field(error, asked, changed)
                if field is None:  # the new name for max_tokens may be wrong as well
                    raise (first if error.names(RENAMED) else error) from None
                changed.add(field)
            else:
                self._changed |= changed
                return answer

    def _only_model(self) -> str:
        try:
            with _known_form():
                names = [model["id"] for model in self.client.get("/models")["data"]]
                listed = ", ".join(names)
        except WrongServerError:
            raise
        except (RefusedError, ValueError) as error:
            raise RunError(
                f"{self.client.address} does not say which models it has ({error}): name one with "
                "--served-model-name"
            ) from None
        if len(names) != 1:
            raise RunError(
                f"{self.client.address} has {listed or 'no model'}: name one with "
                "--served-model-name"
            )
        return names[0]


def _probe(requests: Sequence[ItemRequest]) -> ChoiceQuestion:
    """A short question with the characters of the items that are parts of tokens, if any are."""
    asked = [
        request.question for request in requests if isinstance(request.question, ChoiceQuestion)
    ]
    contexts = _unusual("".join(question.context for question in asked))
    options = _unusual("".join(option for question in asked for option in question.options))
    return ChoiceQuestion(f"A{contexts}:", (f"b{options}", "c"), 0)


def _unusual(text: str) -> str:
    characters = dict.fromkeys(character for character in text if not character.isascii())
    return "".join(list(characters)[:PROBE_CHARACTERS])


def _finish(reason: Any, refusal: Any) -> Literal["end", "length", "refused"]:
    if refusal or reason == "content_filter":
        return "refused"
    return "length" if reason == "length" else "end"


def _wrong_field(error: RefusedError, asked: Fields, changed: set[str]) -> str | None:
    """The field that the server calls wrong, if it can be asked in another way."""
    if error.status not in WRONG_FIELD:
        return None
    for field, (change, _) in CHANGES.items():
        if field not in changed and error.names(field) and change(asked) != asked:
            return field
    return None


def _fatal(error: BaseException | None, failed: int) -> Exception | None:
    """The error that ends a run, after so many failures in a row; None if it can go on."""
    if isinstance(error, ServerError | WrongServerError | RunError):
        return error
    if failed == MOST_FAILED:
        return ServerError(
            f"{failed} requests in a row failed, the last one because {error}: see the server's "
            "log, and run the same command again"
        )
    return None


@contextmanager
def _known_form() -> Iterator[None]:
    """Turn what an answer of another form leads to into a ValueError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        name = type(error).__name__
        raise ValueError(f"the server's answer has an unknown form ({name}: {error})") from None


def _option(text: str, tokens: Sequence[Token], merged: str | None) -> ScoredOption:
    log_probs = tuple(token.log_prob for token in tokens)
    if None in log_probs:
        raise ValueError(f"the server gives no log-probability for a token before {text!r:.40}")
    return ScoredOption(
        text,
        tuple(token.text for token in tokens),
        log_probs,
        all(token.best for token in tokens),
        merged,
    )
