"""The fields of a request that constrain its output, as OpenAI's API and vLLM name them.

response_format is OpenAI's. structured_outputs is vLLM's; guided_regex, guided_choice and
guided_json are its older names, which vLLM removed in version 0.12 and other servers still have.

Sources: OpenAI's API reference on structured outputs; vLLM's documentation, Structured Outputs.
Chapter: deployment/server.
"""

import json
import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from course_pkg.deployment.strict_fields import Fields

Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class Constraint(NamedTuple):
    """What an output must satisfy. kind: of the text, which is a regular expression ("regex") or
    the JSON text of a schema ("json"). field: of the request, for messages."""

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
    """OpenAI's response_format: any text, any JSON object, or JSON of a schema.

    >>> ResponseFormat(type="json_object").constraint
    Constraint(kind='json', text='{"type": "object"}', field='response_format')
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check_pair(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("give json_schema with the type json_schema, and only with it")
        return self

    @property
    def constraint(self) -> Constraint | None:
        """None for any text."""
        if self.type == "text":
            return None
        if self.json_schema is None:
            return Constraint("json", json.dumps({"type": "object"}), "response_format")
        schema = json.dumps(self.json_schema.schema_)
        return Constraint("json", schema, "response_format.json_schema.schema")


class StructuredOutputs(Fields):
    """vLLM's structured_outputs: a regular expression, a schema, texts to choose from, or any JSON
    object; one of them."""

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
        """Of the field that is given."""
        [name] = self.model_fields_set
        bare = name.rstrip("_")
        return constraint_of(bare, getattr(self, name), f"structured_outputs.{bare}")


def constraint_of(kind: str, value: Any, field: str) -> Constraint:
    """What a field asks for; a regular expression also for texts to choose from.

    kind: regex, choice, json or json_object. field: its whole name.

    >>> constraint_of("choice", ["a+b", "c"], "guided_choice").text
    'a\\\\+b|c'
    """
    if kind == "regex":
        return Constraint("regex", value, field)
    if kind == "choice":
        return Constraint("regex", "|".join(map(re.escape, value)), field)
    schema = {"type": "object"} if kind == "json_object" else value
    return Constraint("json", json.dumps(schema), field)
