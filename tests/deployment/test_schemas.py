"""The fields of requests: the engine's under the same names, strict, and cheap to refuse."""

import dataclasses

import pytest
from pydantic import ValidationError

from course_pkg.deployment.error_responses import explain
from course_pkg.deployment.schemas import (
    NEUTRAL,
    SAMPLING,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from course_pkg.serving.sampling import SamplingParams
from tests.tables import each_row

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "m", "prompt": "a"}


def test_sampling_fields_are_the_engines():
    """All but those that mean something else here, and priority, which a client must not choose."""
    ours = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    schema = GenerationRequest.model_fields
    assert schema.keys() >= SAMPLING and "priority" not in schema
    same = SAMPLING - {"stop", "logit_bias"}
    assert {name: schema[name].default for name in same} == {name: ours[name] for name in same}
    assert CompletionRequest(**TEXT).params(16) == SamplingParams()
    fields = {"temperature": 0.5, "top_p": 0.9, "n": 2, "stop": ["x"], "seed": 3, "top_k": 4}
    fields |= {"min_p": 0.1, "repetition_penalty": 1.1, "frequency_penalty": 0.5}
    fields |= {"presence_penalty": -1.0, "ignore_eos": True, "cache_salt": "mine"}
    assert fields.keys() == SAMPLING - {"logit_bias"}  # whose keys are strings in JSON
    biased = CompletionRequest(**TEXT, logit_bias={"5": 1.5, "7": -100}).params(9)
    assert biased.logit_bias == ((5, 1.5), (7, -100.0))
    assert CompletionRequest(**TEXT, **fields).params(9) == SamplingParams(max_tokens=9, **fields)
    assert ChatRequest(**CHAT, **fields).params(9) == SamplingParams(max_tokens=9, **fields)


@each_row(
    ("body", "logprobs", "prompt_logprobs"),
    [
        (ChatRequest(**CHAT), None, None),
        (ChatRequest(**CHAT, logprobs=True), 0, None),
        (ChatRequest(**CHAT, logprobs=True, top_logprobs=5), 5, None),
        (CompletionRequest(**TEXT, logprobs=3), 3, None),
        (CompletionRequest(**TEXT, logprobs=3, echo=True), 3, 3),
    ],
)
def test_log_probabilities(body, logprobs, prompt_logprobs):
    params = body.params(5)
    assert (params.logprobs, params.prompt_logprobs) == (logprobs, prompt_logprobs)


def test_null_is_the_default_and_neutral_values_are_of_the_right_type():
    nulls = dict.fromkeys([*CompletionRequest.model_fields, *NEUTRAL])
    assert CompletionRequest.model_validate(nulls | TEXT) == CompletionRequest(**TEXT)
    # 0 == False and 1 == True, but only one of them is a number.
    for field, value in {"best_of": True, "store": 0}.items():
        with pytest.raises(ValidationError):
            CompletionRequest.model_validate(TEXT | {field: value})


def test_a_large_wrong_request_is_refused_at_its_first_error():
    for fields in (
        {"messages": [0] * 500_000},
        {"messages": [{"role": "user", "content": [0] * 5000}] * 100},
        {f"field{index}": 1 for index in range(100_000)},
    ):
        with pytest.raises(ValidationError) as wrong:
            ChatRequest.model_validate(CHAT | fields)
        [detail] = wrong.value.errors()
        error = explain([{**detail, "loc": ("body", *detail["loc"])}])
        assert error.status == 400 and len(error.message) < 300
