"""What answers in `course chat`: an engine in this process, or a server with OpenAI's API.

Both take the messages of a conversation, and drop its oldest exchanges if they don't fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from course_pkg.adapters.peft_files import read_settings
from course_pkg.common.errors import CourseError
from course_pkg.common.http_client import HttpClient, RefusedError
from course_pkg.deployment.export.merged import load_merged
from course_pkg.deployment.load_engine import load_engine
from course_pkg.evaluation.server_model import ServerModel
from course_pkg.finetuning.conversations import Message
from course_pkg.finetuning.formats import (
    as_dicts,
    chat_text,
    keep_recent,
    prompt_tokens,
    with_template,
)
from course_pkg.lm.model_errors import ModelError
from course_pkg.lm.smollm2 import NAME
from course_pkg.serving.engine import Engine
from course_pkg.serving.lora_rows import check_adapter
from course_pkg.serving.sampling import SamplingParams


class ChatError(CourseError, ValueError):
    """A chat can't start as asked, or a turn can't be answered; the message says what to do."""


ADAPTER = "adapter"  # its name in the engine
CACHE_GB = 1.0
TOO_LONG = ("context_length_exceeded", "exceed_context_size_error")  # OpenAI's, llama.cpp's


@dataclass(frozen=True)
class ChatReply:
    """An answer on its way.

    Attributes:
        dropped: how many of the oldest messages the model doesn't see.
        tokens: of the prompt; None if only the server knows.
        texts: the parts of the answer, in order.
        notes: how the model was asked otherwise than was wanted.
    """

    dropped: int
    tokens: int | None
    texts: Iterator[str]
    notes: tuple[str, ...] = ()


class ChatModel(Protocol):
    """What the chat needs of a model. name: for its first line.

    in_process says whether it computes here, so that Ctrl-C must wait for the next part of an
    answer.
    """

    name: str
    in_process: bool

    def reply(self, messages: Sequence[Message], seed: int | None) -> ChatReply:
        """Begin to answer the last message. Raises ValueError if even that one is too long."""
        ...


class LocalChat:
    """A model in this process, which gives out its answer token by token. params: SamplingParams'.

    Raises:
        ChatError: these leave no room for a prompt, or the tokenizer has no chat template.
    """

    in_process = True

    def __init__(self, engine: Engine, name: str, params: dict, adapter: str | None = None):
        self.engine = engine
        self.name = name
        self.adapter = adapter
        self.params = SamplingParams(**params)
        self.limit = engine.max_model_len - (self.params.max_tokens or 1)
        if self.limit < 1:
            raise ChatError(
                f"--max-tokens {self.params.max_tokens}: the model takes {engine.max_model_len} "
                "tokens of prompt and answer together; lower it"
            )
        template = engine.chat_templates.get(adapter)
        self.tokenizer = with_template(engine.tokenizer, template) if template else engine.tokenizer
        if self.tokenizer.chat_template is None:
            raise ChatError(f"{name} has no chat template: choose a model that is tuned for chat")

    def reply(self, messages: Sequence[Message], seed: int | None) -> ChatReply:
        tokenizer = self.tokenizer
        try:
            kept = keep_recent(messages, tokenizer, self.limit)
        except ValueError as error:
            raise ValueError(
                f"{error} (the limit is what the model takes, {self.engine.max_model_len}, "
                f"less --max-tokens, {self.params.max_tokens})"
            ) from None
        text = chat_text(kept, tokenizer, generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        chunks = self.engine.stream(ids, replace(self.params, seed=seed), adapter=self.adapter)
        dropped = len(messages) - len(kept)
        return ChatReply(dropped, prompt_tokens(kept, tokenizer), (chunk.text for chunk in chunks))


class ServerChat:
    """A model behind an address; its answer comes in one piece, through `course eval`'s client.

    Ctrl-C closes the connection, on which servers such as `course serve` stop the answer. served:
    the model's name there; None asks for the only one.
    """

    in_process = False

    def __init__(self, client: HttpClient, params: dict, served: str | None = None):
        self.client = client
        self._server = ServerModel(client, served)
        self.name = f"{self._server.name} at {client.address}"
        self._settings = params

    def reply(self, messages: Sequence[Message], seed: int | None) -> ChatReply:
        """The answer, without the oldest exchanges if the server refuses all of them together."""
        body = dict(self._settings)
        if seed is not None:
            body["seed"] = seed
        rules = 1 if messages[0].role == "system" else 0
        dropped = 0
        while True:
            kept = [*messages[:rules], *messages[rules + dropped :]]
            try:
                asked = body | {"messages": as_dicts(kept)}
                answer = self._server.ask("/chat/completions", asked)
                text = _content(answer["choices"][0])
                return ChatReply(dropped, None, iter([text]), self._server.notes)
            except RefusedError as error:
                if not _may_be_too_long(error) or len(kept) - rules < 3:
                    raise ChatError(str(error)) from None
                dropped += 2  # a question with its answer
            except (KeyError, TypeError, IndexError, AttributeError):
                raise ChatError(f"{self.client.address} sent no answer") from None


def _content(choice: dict) -> str:
    """The text of an answer. Raises ChatError if the server says why there is none."""
    text = choice["message"].get("content") or ""
    if not isinstance(text, str):
        raise TypeError
    if not text and (refusal := choice["message"].get("refusal")):
        raise ChatError(f"the model refuses: {refusal!s:.300}")
    if not text and choice.get("finish_reason") == "length":
        raise ChatError(
            "it reached --max-tokens without a text; raise it for a model that thinks first"
        )
    return text


def _may_be_too_long(error: RefusedError) -> bool:
    """Whether fewer messages may help: the server says so, or gives no code to tell by."""
    if error.status not in (400, 413, 422):
        return False
    return error.code in TOO_LONG or error.kind in TOO_LONG or error.code is None


def load_chat(
    model: str | None,
    adapter: Path | None,
    params: dict,
    *,
    device: str | None = None,
    dtype: str = "auto",
) -> LocalChat:
    """A model by name or folder, with an adapter. model: None is the adapter's own, or the default.

    The engine takes LoRA beside the model. An adapter of another method is merged, if it can be.

    Raises:
        ModelError, ServeError, ChatError: the chat can't start; the message says what to do.
    """
    merge = False
    if adapter is not None:
        try:
            named = read_settings(adapter).get("base_model_name_or_path")
        except (ValueError, OSError) as error:
            raise ModelError(f"--adapter {adapter}: {error}") from None
        model = model or named
        try:
            check_adapter(adapter, ADAPTER)
        except (ValueError, TypeError):
            merge = True
    model = model or NAME
    name = model if adapter is None else f"{model} with {adapter}"
    if merge:
        engine = Engine(*load_merged(adapter, model), memory_bytes=int(CACHE_GB * 1e9))
        return LocalChat(engine, name, params)
    adapters = {} if adapter is None else {ADAPTER: adapter}
    engine = load_engine(model, adapters, device, CACHE_GB, 1, dtype)
    return LocalChat(engine, name, params, ADAPTER if adapters else None)
