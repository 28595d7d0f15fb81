"""Constrained output over the API: texts match, and a wrong or slow constraint harms nobody."""

import asyncio
import gc
import json
import re
import signal
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from course_pkg.deployment import constraint_compiler
from course_pkg.deployment.api_errors import ApiError
from course_pkg.deployment.constraint_compiler import ConstraintCompiler
from course_pkg.deployment.schemas import Constraint
from course_pkg.serving.constrained.guide import json_schema_guide
from course_pkg.serving.sampling import SamplingParams
from tests.serving.constrained.regexes import PERSON
from tests.tables import each_row
from tests.waiting import wait_until

from .live import PATIENCE, chat, complete, serving, tiny_engine

CLOSED = PERSON | {"additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": CLOSED}}
FREE = {"ignore_eos": False, "max_tokens": 80}


@pytest.fixture(scope="module")
def live():
    with serving(compile_seconds=PATIENCE) as running:
        yield running
        process = compiler_of(running)._process.popen
    wait_until(lambda: process.poll() is not None)  # it ends with the server


@pytest.fixture(scope="module")
def client(live):
    return live.client()


def is_person(text):
    person = json.loads(text)
    return list(person) == ["name", "age"] and 0 <= person["age"] <= 120


def test_a_schema_is_followed_and_is_what_the_engine_writes(client):
    fields = {"temperature": 1.2, "seed": 5, "n": 2}
    answer = client.completions.create(
        model="tiny", prompt="ab", max_tokens=80, **fields, extra_body={"response_format": FORMAT}
    )
    engine = tiny_engine()
    guide = json_schema_guide(CLOSED, engine.vocabulary)
    [request] = engine.generate(["ab"], SamplingParams(max_tokens=80, guide=guide, **fields))
    assert [choice.text for choice in answer.choices] == [c.text for c in request.completions]
    assert all(is_person(choice.text) for choice in answer.choices)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


def test_chats_and_streams_are_constrained_too_and_text_is_no_constraint(client):
    whole = chat(client, response_format=FORMAT, **FREE).choices[0].message.content
    events = chat(client, response_format=FORMAT, stream=True, **FREE)
    assert "".join(event.choices[0].delta.content or "" for event in events) == whole
    assert is_person(whole)
    assert chat(client, response_format={"type": "text"}).choices == chat(client).choices


class Person(BaseModel):
    """As a program describes what it wants to read."""

    name: Annotated[str, Field(pattern="^[A-Z][a-z]{2,7}$")]
    age: Annotated[int, Field(ge=0, le=120)]
    nickname: Literal["ace", "kid"] | None


def test_openais_client_gets_an_object_of_a_pydantic_class(client):
    turns = [{"role": "user", "content": "Hi"}]
    answer = client.chat.completions.parse(
        model="tiny", messages=turns, response_format=Person, max_tokens=120, temperature=0
    )
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person) and 0 <= person.age <= 120


@each_row(
    ("fields", "pattern"),
    [
        ({"guided_regex": r"\d{3}-[xyz]?z"}, r"\d{3}-[xyz]?z"),
        ({"guided_regex": "^(?:yes|no)$"}, "yes|no"),
        ({"guided_regex": "^a{2}$|^b"}, "aa|b"),
        ({"guided_choice": ["a^b", "$"]}, r"a\^b|\$"),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
        ({"structured_outputs": {"regex": "(yes|no)!"}}, "(yes|no)!"),
        ({"structured_outputs": {"choice": ["a+b", "(c)"]}}, r"a\+b|\(c\)"),
        ({"structured_outputs": {"json": {"enum": ["on", 7]}}}, '"on"|7'),
    ],
)
def test_every_other_field_is_followed(client, fields, pattern):
    [choice] = complete(client, **FREE | fields).choices
    assert re.fullmatch(pattern, choice.text, re.ASCII) and choice.finish_reason == "stop"


def test_any_json_object_begins_as_one_and_ends_complete_or_by_length(client):
    for fields in (
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ):
        answer = chat(client, **FREE | fields, seed=1)
        text = answer.choices[0].message.content
        assert text.startswith("{")
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(text), dict)


def schema_format(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x"} | schema}}


SCHEMA = "response_format.json_schema.schema"
WRONG = [
    (schema_format({"schema": {"type": "string", "format": "date"}}), SCHEMA, "at # of"),
    (schema_format({"schema": []}), SCHEMA, "dictionary"),
    (schema_format({}), SCHEMA, "missing"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "give json_schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "'json_object'"),
    ({"guided_regex": "a" * 40_000}, "guided_regex", "at most 32768"),
    ({"guided_regex": "a{20000}"}, "guided_regex", "more than 10000 states"),
    ({"guided_regex": "a(^b)"}, "guided_regex", "the anchor ^ is not supported"),
    ({"guided_json": {"type": "integer", "minimum": -(10**400)}}, "guided_json", "at most 100"),
    ({"guided_json": {"minLength": 10**30, "type": "string"}}, "guided_json", "10000 states"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"guided_choice": ["a"], "guided_regex": "b"}, None, "give one of them"),
    ({"structured_outputs": {}}, "structured_outputs", "one of regex, json"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
    ({"structured_outputs": {"grammar": "a"}}, "structured_outputs.grammar", "has no field"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, None, "give one of them"),
    ({"guided_regex": "a", "ignore_eos": True}, None, "needs an end of the text"),
]


@each_row(("fields", "param", "message"), WRONG)
def test_a_wrong_constraint_is_told_what_is_wrong_and_where(live, fields, param, message):
    status, answer = live.post("/v1/completions", {"model": "tiny", "prompt": "a"} | fields)
    assert status == 400 and message in answer["error"]["message"], answer
    assert answer["error"]["param"] == param


def test_a_schema_of_any_depth_is_refused_in_order(live):
    """Wherever the nesting is too deep first: for the body, for the schema, for its compiler."""
    for depth in (400, 450, 460, 470, 475, 480, 485, 490, 495, 5000):
        schema = '{"anyOf": [' * depth + '{"type": "null"}' + "]}" * depth
        fields = '"model": "tiny", "prompt": "a", "structured_outputs": {"json": '
        status, answer = live.post("/v1/completions", ("{" + fields + schema + "}}").encode())
        assert status == 400, (depth, answer)


def test_constraints_that_wait_hold_no_place_and_copies_of_one_wait_together():
    limits = {"compiling": 2, "waiting": 1, "compile_seconds": PATIENCE}
    with serving(tiny_engine(max_sequences=1), **limits) as live:
        client = live.client()
        complete(client, **FREE | {"guided_regex": "[ab]"})  # the process has started
        compiler = compiler_of(live)
        process = compiler._process.popen
        process.send_signal(signal.SIGSTOP)  # it compiles and compiles

        def readers():
            return sum(len(waiting) for _, waiting in list(compiler._waiting.values()))

        with ThreadPoolExecutor(8) as threads:
            slow = []
            for pattern in ("[cd]", "[cd]", "[cd]", "[ef]"):  # more than there are places
                fields = FREE | {"guided_regex": pattern}
                slow.append(threads.submit(complete, client, **fields))
                wait_until(lambda: readers() == len(slow) and not live.gate.taken)
            with pytest.raises(openai.RateLimitError, match="2 other constraints wait"):
                complete(client, **FREE | {"guided_regex": "[gh]"})
            assert complete(client, "a", max_tokens=2).choices  # others are served
            assert not any(request.done() for request in slow)
            process.send_signal(signal.SIGCONT)
            errors = [request.exception() for request in slow]
        wait_until(lambda: live.is_empty)
        assert compiler._waiting == {}
        for request, error in zip(slow, errors, strict=True):
            if error is None:
                assert request.result().choices[0].text in "cdef"
            else:
                assert isinstance(error, openai.RateLimitError)


def test_the_next_process_starts_while_a_constraint_takes_long(live, client, monkeypatch):
    compiler = compiler_of(live)
    complete(client, **FREE | {"guided_regex": "[ab]"})
    process = compiler._process.popen
    monkeypatch.setattr(constraint_compiler, "SLOW_SECONDS", 0.0)
    process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(complete, client, **FREE | {"guided_regex": "[ij]"})
        wait_until(lambda: compiler._spare is not None and compiler._spare._is_ready)
        spare = compiler._spare
        process.kill()
        assert isinstance(slow.exception(), openai.InternalServerError)
    monkeypatch.undo()
    assert complete(client, **FREE | {"guided_regex": "[kl]"}).choices[0].text in ("k", "l")
    assert compiler._process is spare and compiler._spare is None


def test_a_guide_is_free_as_soon_as_its_request_is_over(live, client):
    guides = compiler_of(live)._guides
    gc.collect()
    gc.disable()  # a request and its completions refer to each other
    try:
        for fields in ({"max_tokens": 1}, {"max_tokens": 20}):  # cut, and complete
            complete(client, **FREE | {"guided_regex": "[mn]{9}"} | fields)
            [guide] = [guides.pop(key) for key in list(guides) if key[1] == "[mn]{9}"]
            reference = weakref.ref(guide)
            del guide
            wait_until(lambda: reference() is None)  # noqa: B023
    finally:
        gc.enable()


def compiler_of(live):
    return live.app.state.service._compiler


def test_a_constraint_that_takes_too_long_is_refused_and_the_next_one_is_not(live, client):
    compiler = compiler_of(live)
    complete(client, **FREE | {"guided_regex": "[ab]"})
    process = compiler._process.popen
    process.send_signal(signal.SIGSTOP)
    compiler._seconds = 0.1
    with pytest.raises(openai.BadRequestError, match=r"longer than 0\.1 s to compile") as refused:
        complete(client, **FREE | {"guided_regex": "[ef]"})
    assert refused.value.param == "guided_regex" and process.poll() == -signal.SIGKILL
    with pytest.raises(openai.BadRequestError, match=r"longer than 0\.1 s to compile"):
        complete(client, **FREE | {"guided_regex": "[ef]"})  # at once: no process is asked again
    assert compiler._process is None
    compiler._seconds = PATIENCE
    assert complete(client, **FREE | {"guided_regex": "[gh]"}).choices[0].text in ("g", "h")
    compiler._clock = lambda: time.monotonic() + constraint_compiler.REFUSED_SECONDS
    assert complete(client, **FREE | {"guided_regex": "[ef]"}).choices[0].text in ("e", "f")
    compiler._clock = time.monotonic


def test_a_constraint_is_compiled_once_and_the_oldest_guides_are_dropped(live, monkeypatch):
    sent = []
    send = constraint_compiler._send

    def counted(pipe, value):
        sent.append(value)
        send(pipe, value)

    compiler = compiler_of(live)

    async def guides(*texts):
        constraints = [Constraint("regex", text, "f") for text in texts]
        return await asyncio.gather(*map(compiler.guide, constraints))

    asyncio.run(guides("started"))
    monkeypatch.setattr(constraint_compiler, "_send", counted)
    monkeypatch.setattr(constraint_compiler, "MOST_STATES_KEPT", 8)
    first, again = asyncio.run(guides("abc", "abc"))  # 4 states
    assert first is again and first.vocabulary is live.engine.vocabulary
    assert asyncio.run(guides("abc")) == [first] and sent == [("regex", "abc")]
    asyncio.run(guides("uvw", "xyz"))
    assert [text for _, text in compiler._guides] == ["uvw", "xyz"]
    assert asyncio.run(guides("abc")) != [first] and len(sent) == 4


def test_after_the_end_a_constraint_gets_503():
    compiler = ConstraintCompiler(lambda: None, 1.0, 8)
    compiler.stop()
    with pytest.raises(ApiError) as refused:
        asyncio.run(compiler.guide(Constraint("regex", "a", "f")))
    assert refused.value.status == 503
