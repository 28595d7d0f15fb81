"""The service: what a checked request means to the engine."""

import asyncio
import copy
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.deployment.admission import Limits
from course_pkg.deployment.api_errors import ApiError, invalid
from course_pkg.deployment.constraint_compiler import ConstraintCompiler
from course_pkg.deployment.engine_thread import Call, EngineThread
from course_pkg.deployment.responses import TokenTexts
from course_pkg.deployment.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from course_pkg.deployment.tokenizer_threads import TokenizerThreads
from course_pkg.finetuning.conversations import Message
from course_pkg.finetuning.formats import chat_text
from course_pkg.serving.constrained.guide import Guide
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingError

Waiting = Callable[[], AbstractContextManager[None]]


class Service:
    """An engine under a model's name, with its adapters as further models."""

    def __init__(self, engine: Engine, model: str, limits: Limits):
        self.limits = limits
        self.max_model_len = engine.max_model_len
        self.adapters = {model: None} | {name: name for name in engine.adapters}
        self._templates = engine.chat_templates
        self.thread = EngineThread(engine, limits.backlog)
        self.created = int(time.time())
        self.texts = TokenTexts(copy.deepcopy(engine.tokenizer))
        self._tokenizers = TokenizerThreads(engine.tokenizer, self._check_running)
        # Reading the vocabulary leaves the engine's tokenizer as it is.
        self._compiler = ConstraintCompiler(
            lambda: engine.vocabulary, limits.compile_seconds, limits.compiling
        )
        self._stopping = False

    def models(self) -> list[dict[str, Any]]:
        """The served models; an adapter names its base as the parent."""
        base = next(iter(self.adapters))
        common = {"object": "model", "created": self.created, "owned_by": "course_pkg"}
        common["max_model_len"] = self.max_model_len
        return [
            {"id": name, **common, "parent": base if adapter else None}
            for name, adapter in self.adapters.items()
        ]

    async def complete(self, body: CompletionRequest, waiting: Waiting = nullcontext) -> Call:
        """Start to continue one or several texts. waiting: around the wait for a constraint."""
        texts = [prompt for prompt in body.prompt if isinstance(prompt, str)]
        for text in texts:
            self._check_length(text, "prompt")

        def encode(tokenizer: Tokenizer) -> list[list[int]]:
            return [_ids(tokenizer, e) if isinstance(e, str) else e for e in body.prompt]

        return await self._start(body, "prompt", encode, sum(map(len, texts)), waiting)

    async def chat(self, body: ChatRequest, waiting: Waiting = nullcontext) -> Call:
        def encode(tokenizer: Tokenizer) -> list[list[int]]:
            turns = _turns(body.messages)
            if not turns:
                raise ValueError("there are none: give at least one")
            template = self._templates.get(body.model)
            text = chat_text(turns, tokenizer, generation_prompt=True, template=template)
            self._check_length(text, "messages")
            # The template has written the special tokens.
            return [_ids(tokenizer, text, add_special_tokens=False)]

        size = sum(len(message.text) for message in body.messages)
        return await self._start(body, "messages", encode, size, waiting)

    async def echo(self, body: CompletionRequest) -> list[str]:
        """The texts of the prompts, if the request wants them repeated."""

        def decode(tokenizer: Tokenizer) -> list[str]:
            return [e if isinstance(e, str) else tokenizer.decode(e) for e in body.prompt]

        return await self._tokenizers.run(decode, 0) if body.echo else []

    async def stop(self) -> None:
        """End all calls, threads and the compiler. Requests that wait for one get 503."""
        self._stopping = True
        self._compiler.stop()
        self._tokenizers.stop()
        await self.thread.stop()

    def check(self, body: GenerationRequest, prompts: int) -> None:
        """Refuse what can be refused before any text is encoded."""
        if body.model not in self.adapters:
            raise ApiError(
                404,
                f"there is no model {body.model!r:.80}; there are {list(self.adapters)}",
                code="model_not_found",
                param="model",
                log="no such model",
            )
        if prompts * body.n > self.limits.choices:
            raise invalid(
                f"{prompts} prompts with n = {body.n}: this server generates at most "
                f"{self.limits.choices} samples for a request",
                "n",
            )
        if (body.max_tokens or 0) > self.limits.max_tokens:
            raise invalid(
                f"max_tokens is {body.max_tokens}: this server generates at most "
                f"{self.limits.max_tokens}",
                "max_tokens",
            )

    @property
    def _longest(self) -> int:
        return min(self.limits.prompt_tokens or self.max_model_len, self.max_model_len - 1)

    def _check_length(self, text: str, field: str) -> None:
        """Refuse a text that has too many tokens however it is encoded, which takes long."""
        least = self._tokenizers.least_tokens(text)
        if least > self._longest:
            raise self._too_long(f"at least {least}", field)

    def _too_long(self, tokens: int | str, field: str) -> ApiError:
        return invalid(
            f"the prompt has {tokens} tokens: this server takes prompts of at most "
            f"{self._longest} tokens",
            field,
            "context_length_exceeded",
        )

    async def _start(
        self,
        body: GenerationRequest,
        field: str,
        encode: Callable[[Tokenizer], list[list[int]]],
        characters: int,
        waiting: Waiting,
    ) -> Call:
        deadline = asyncio.get_running_loop().time() + self.limits.request_seconds
        try:
            prompts = await self._tokenizers.run(encode, characters)
        except ValueError as error:
            raise invalid(f"{field}: {error}", field, log=f"{field} cannot be read") from None
        longest = max(map(len, prompts))
        if longest > self._longest:
            raise self._too_long(longest, field)
        room = self.max_model_len - longest
        if (body.max_tokens or 0) > room:
            raise invalid(
                f"the prompt has {longest} tokens, and max_tokens is {body.max_tokens}: this "
                f"server takes at most {self.max_model_len} tokens of prompt and answer together",
                field,
                "context_length_exceeded",
            )
        most = min(room, self.limits.max_tokens) if body.max_tokens is None else body.max_tokens
        guide = await self._guide(body, waiting)
        try:
            params = body.params(most, guide)
        except SamplingError as error:
            log = f"{error.name} is out of range"
            raise invalid(str(error), error.name, log=log) from None
        call = Call(prompts, params, self.adapters[body.model])
        call.deadline = deadline
        self._check_running()
        await self.thread.submit(call)  # at once, so that a stop comes after it
        return call

    async def _guide(self, body: GenerationRequest, waiting: Waiting) -> Guide | None:
        try:
            constraint = body.constraint
        except RecursionError:
            fields = ("response_format", "guided_json", "structured_outputs")
            field = next(name for name in fields if getattr(body, name) is not None)
            raise invalid(f"{field}: the schema is nested too deeply", field) from None
        if constraint is None:
            return None
        size = len(constraint.text)
        if size > self.limits.constraint_characters:
            raise invalid(
                f"{constraint.field} has {size} characters: this server takes at most "
                f"{self.limits.constraint_characters}",
                constraint.field,
            )
        with waiting():
            return await self._compiler.guide(constraint)

    def _check_running(self) -> None:
        if self._stopping or not self.thread.alive:
            raise ApiError(503, "the engine has stopped")


class EmptyAnswer(NamedTuple):
    """An answer of this server that was empty, as a turn of a conversation that goes on."""

    content: str
    role: str = "assistant"


def _turns(messages: Sequence[ChatMessage]) -> list[Message | EmptyAnswer]:
    """The turns for the chat template; a system text without words says nothing."""
    turns: list[Message | EmptyAnswer] = []
    for message in messages:
        if message.text.strip() or message.speaker not in ("assistant", "system"):
            turns.append(Message(message.speaker, message.text))
        elif message.speaker == "assistant":
            turns.append(EmptyAnswer(message.text))
    return turns


def _ids(tokenizer: Tokenizer, text: str, **options: bool) -> list[int]:
    text.encode()  # raises ValueError for a lone surrogate, which is not a character
    return tokenizer(text, verbose=False, **options).input_ids
