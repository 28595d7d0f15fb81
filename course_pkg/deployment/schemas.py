"""Schemas: the fields of a request, as OpenAI's API names them, and what they mean to the engine.

Types are strict ("5" is not a number), and a field that this server does not have is refused,
unless its value changes nothing: client libraries send such fields. structured_outputs is vLLM's;
guided_regex, guided_choice and guided_json are its older names.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, FailFast, Field, field_validator, model_validator

from course_pkg.serving.constrained.guide import Guide
from course_pkg.serving.sampling import MOST_BIASES, MOST_LOGPROBS, SamplingParams

MOST_FIELDS = 100

# Values that ask for nothing; other values of these fields are refused.
NEUTRAL: dict[str, Sequence[Any]] = {
    "best_of": (1,),
    "suffix": ("",),
    "store": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (False, True),  # of tools, which there are none
    "top_k": (-1,),  # vLLM's for all tokens
    "tool_calls": ([],),  # of a message, as an answer has them
    "annotations": ([],),
}


def _is_neutral(name: str, value: Any) -> bool:
    """Whether a field with this value asks for nothing; null counts as absent."""
    if value is None:
        return True
    # 0 == False, but only one of them is a number.
    same_kind = [v for v in NEUTRAL.get(name, ()) if isinstance(v, bool) == isinstance(value, bool)]
    return value in same_kind


def _without_neutral(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    if len(data) > MOST_FIELDS:
        raise ValueError(f"an object has {len(data)} fields")
    return {name: value for name, value in data.items() if not _is_neutral(name, value)}


class Fields(BaseModel):
    """An object of a request: strict types, no unknown fields, null for the default."""

    model_config = ConfigDict(strict=True, extra="forbid")

    _drop_neutral = model_validator(mode="before")(staticmethod(_without_neutral))


Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class Constraint(NamedTuple):
    """What an output must satisfy.

    Attributes:
        kind: whether the text is a regular expression ("regex") or a schema's JSON ("json").
        field: of the request, for messages.
    """

    kind: Literal["regex", "json"]
    text: str
    field: str


class JsonSchemaFormat(Fields):
    """OpenAI's json_schema. strict changes nothing: the schema is always followed."""

    name: Annotated[str, Field(max_length=64)]
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Fields):
    """OpenAI's response_format: any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check_pair(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("give json_schema with the type json_schema, and only with it")
        return self

    @property
    def constraint(self) -> Constraint | None:
        if self.type == "text":
            return None
        if self.json_schema is None:
            return Constraint("json", json.dumps({"type": "object"}), "response_format")
        schema = json.dumps(self.json_schema.schema_)
        return Constraint("json", schema, "response_format.json_schema.schema")


class StructuredOutputs(Fields):
    """vLLM's structured_outputs: one of a regular expression, a schema, texts, or any object."""

    regex: str | None = None
    json_: dict[str, Any] | None = Field(None, alias="json")
    choice: Choices | None = None
    json_object: Literal[True] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "StructuredOutputs":
        if len(self.model_fields_set) != 1:
            raise ValueError("expected one of regex, json, choice and json_object")
        return self

    @property
    def constraint(self) -> Constraint:
        [name] = self.model_fields_set
        bare = name.rstrip("_")
        return constraint_of(bare, getattr(self, name), f"structured_outputs.{bare}")


def constraint_of(kind: str, value: Any, field: str) -> Constraint:
    """What a field asks for; a regular expression also for texts to choose from.

    Args:
        kind: regex, choice, json or json_object.
        field: its whole name.
    """
    if kind == "regex":
        return Constraint("regex", value, field)
    if kind == "choice":
        return Constraint("regex", "|".join(map(re.escape, value)), field)
    schema = {"type": "object"} if kind == "json_object" else value
    return Constraint("json", json.dumps(schema), field)


TOKEN = re.compile(r"[0-9]{1,9}")  # an id as the key of a JSON object
MOST_STOPS = 16  # each new token is compared with all beginnings of them
LONGEST_STOP = 256
GUIDED = ("guided_regex", "guided_choice", "guided_json")
Prompt = str | list[int]
Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]  # as large as OpenAI's seeds
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]
# Beyond these, logits overflow, and the step that computes them fails for all its requests.
Penalty = Annotated[float, Field(ge=0.01, le=100)]

# Fields that SamplingParams has under the same names. A client must not choose its priority, and
# gives a constraint, from which the guide is compiled.
SAMPLING = {field.name for field in fields(SamplingParams)} - {
    "max_tokens",
    "logprobs",
    "prompt_logprobs",
    "priority",
    "guide",
}


class StreamOptions(Fields):
    """include_usage: a last event has the numbers of tokens."""

    include_usage: bool = False


class GenerationRequest(Fields):
    """What both kinds of requests have. cache_salt and what follows are not in OpenAI's API."""

    model: str
    max_tokens: Whole | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    n: Whole = 1
    stop: list[str] = Field(default_factory=list)
    seed: Whole | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = Field(default_factory=dict)
    response_format: ResponseFormat | None = None
    user: str | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    cache_salt: str | None = None
    top_k: Whole = 0
    min_p: float = 0.0
    repetition_penalty: Penalty = 1.0
    ignore_eos: bool = False
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_json: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stops(cls, value: Any) -> Any:
        strings = [value] if isinstance(value, str) else value
        fits = isinstance(strings, list) and len(strings) <= MOST_STOPS
        if not fits or not all(isinstance(s, str) and 0 < len(s) <= LONGEST_STOP for s in strings):
            raise ValueError(
                f"expected a string or a list of at most {MOST_STOPS} strings, each of 1 to "
                f"{LONGEST_STOP} characters"
            )
        return strings

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _biases(cls, value: Any) -> Any:
        fits = isinstance(value, dict) and len(value) <= MOST_BIASES
        if not fits or not all(isinstance(key, str) and TOKEN.fullmatch(key) for key in value):
            raise ValueError(
                f"expected an object with at most {MOST_BIASES} token ids and their biases"
            )
        return {int(key): bias for key, bias in value.items()}

    @model_validator(mode="after")
    def _check_stream_options(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is given, but stream is false")
        return self

    @model_validator(mode="after")
    def _check_constraint(self) -> "GenerationRequest":
        names = [
            name
            for name in ("response_format", *GUIDED, "structured_outputs")
            if getattr(self, name) is not None
        ]
        if self.response_format is not None and self.response_format.type == "text":
            names.remove("response_format")
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names)} constrain the output: give one of them")
        if names and self.ignore_eos:
            raise ValueError(f"ignore_eos is true, but {names[0]} needs an end of the text")
        return self

    @property
    def constraint(self) -> Constraint | None:
        for name in GUIDED:
            if (value := getattr(self, name)) is not None:
                return constraint_of(name.removeprefix("guided_"), value, name)
        source = self.structured_outputs or self.response_format
        return None if source is None else source.constraint

    @property
    def scores_only(self) -> bool:
        """Whether no token is wanted, but the prompt with its log-probabilities."""
        return False

    def params(self, max_tokens: int, guide: Guide | None = None) -> SamplingParams:
        """The engine's parameters. Raises SamplingError for one that is out of range.

        The engine always generates a token; an answer that only scores the prompt leaves it out.
        """
        values = {name: getattr(self, name) for name in SAMPLING} | self.reported
        most = 1 if self.scores_only else max_tokens
        return SamplingParams(max_tokens=most, guide=guide, **values)

    @property
    def reported(self) -> dict[str, int | None]:
        """Which log-probabilities the engine is asked for: none."""
        return {}


class CompletionRequest(GenerationRequest):
    """POST /v1/completions: continue a text, or several."""

    prompt: Any
    max_tokens: Whole | None = 16
    echo: bool = False
    logprobs: Whole | None = None

    @property
    def scores_only(self) -> bool:
        return self.echo and self.max_tokens == 0

    @field_validator("prompt")
    @classmethod
    def _prompts(cls, value: Any) -> list[Prompt]:
        def ids(prompt: Any) -> bool:
            return isinstance(prompt, list) and all(type(token) is int for token in prompt)

        several = [value] if isinstance(value, str) or (value and ids(value)) else value
        if not isinstance(several, list) or not several:
            several = [None]
        if not all(isinstance(prompt, str) for prompt in several) and not all(map(ids, several)):
            raise ValueError("expected a text, a list of texts, token ids, or lists of token ids")
        return several

    @property
    def reported(self) -> dict[str, int | None]:
        return {"logprobs": self.logprobs, "prompt_logprobs": self.logprobs if self.echo else None}


class TextPart(Fields):
    """A part of a message; this server reads text only."""

    type: Literal["text"]
    text: str


class ChatMessage(Fields):
    """One turn: a text, or a list of texts that are joined. name: not shown to the model."""

    role: str
    name: str | None = None
    content: Annotated[list[TextPart], FailFast()]

    @field_validator("content", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> Any:
        if not isinstance(value, str | list):
            raise ValueError("expected a text, or a list of parts with texts")
        return [{"type": "text", "text": value}] if isinstance(value, str) else value

    @property
    def speaker(self) -> str:
        """The role by the name that chat templates have for it: a developer's is system."""
        return "system" if self.role == "developer" else self.role

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions: answer a conversation."""

    # Without FailFast, a body of 1 MB with 500,000 wrong messages takes 2 s to describe.
    messages: Annotated[list[ChatMessage], FailFast()]
    max_completion_tokens: Whole | None = None
    logprobs: bool = False
    top_logprobs: Whole | None = None

    @model_validator(mode="after")
    def _check_pairs(self) -> "ChatRequest":
        if self.top_logprobs is not None:
            if not self.logprobs:
                raise ValueError("top_logprobs is given, but logprobs is false")
            if not 0 <= self.top_logprobs <= MOST_LOGPROBS:
                raise ValueError(f"top_logprobs must be from 0 to {MOST_LOGPROBS}")
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise ValueError("max_tokens and max_completion_tokens differ: give one of them")
            self.max_tokens = self.max_completion_tokens
        return self

    @property
    def reported(self) -> dict[str, int | None]:
        return {"logprobs": (self.top_logprobs or 0) if self.logprobs else None}
