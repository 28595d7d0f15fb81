"""The API as OpenAI's own client sees it, over loopback."""

import re

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.adapters.adapter_io import save_adapter
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.deployment.schemas import NEUTRAL, CompletionRequest
from course_pkg.finetuning.formats import chat_prompt
from course_pkg.lm.load import load
from course_pkg.serving.sampling import SamplingParams
from tests.tables import each_row

from .live import MODEL, chat, complete, serving, tiny_engine


def expected(prompt, adapter=None, engine=None, **params):
    params = {"temperature": 0, "max_tokens": 12, "ignore_eos": True} | params
    engine = engine or tiny_engine()
    return engine.generate([prompt], SamplingParams(**params), adapter=adapter)[0].completions[0]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """The folder of a LoRA adapter that changes what the tiny model generates."""
    model, _ = load("tiny")
    inject(model, LoRAConfig(rank=4, alpha=64))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.05)
    folder = tmp_path_factory.mktemp("poet")
    save_adapter(model, folder)
    return folder


@pytest.fixture(scope="module")
def live(adapter):
    with serving(tiny_engine(adapters={"poet": adapter})) as running:
        yield running


@pytest.fixture(scope="module")
def client(live):
    return live.client()


@pytest.fixture(scope="module")
def short_prompts():
    with serving(prompt_tokens=30) as running:
        yield running


def texts(chunks):
    by_index = {}
    for [choice] in (chunk.choices for chunk in chunks):
        by_index[choice.index] = by_index.get(choice.index, "") + choice.text
    return [by_index[index] for index in range(len(by_index))]


def test_a_completion_is_what_the_engine_generates(client):
    answer = complete(client, "The sea")
    [choice] = answer.choices
    wanted = expected("The sea").text
    assert (choice.text, choice.finish_reason, choice.logprobs) == (wanted, "length", None)
    assert (answer.object, answer.model) == ("text_completion", "tiny")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 12, 19)
    assert texts(complete(client, "The sea", stream=True)) == [wanted]


def test_a_chat_answer_continues_the_templates_text(client):
    answer = chat(client)
    [choice] = answer.choices
    assert choice.message.content == expected(chat_prompt("Hi", MODEL.tokenizer)).text
    assert choice.message.role == "assistant" and choice.finish_reason == "length"
    assert answer.object == "chat.completion"
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert chat(client, parts).choices == answer.choices
    # The message of an answer goes into the next request as it is, with its fields that are null.
    message = {"role": "user", "content": "Hi"}
    if choice.message.content.strip():
        assert chat(client, messages=[message, choice.message.model_dump(), message]).choices


def test_streams_of_a_chat_have_the_same_text_and_the_usage_at_the_end(client):
    whole = chat(client)
    events = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert {event.object for event in events} == {"chat.completion.chunk"}
    assert len({event.id for event in events}) == 1
    parts = [event.choices[0] for event in events[:-1]]
    assert [part.delta.role for part in parts] == ["assistant"] + [None] * 11
    assert "".join(part.delta.content for part in parts) == whole.choices[0].message.content
    assert [part.finish_reason for part in parts] == [None] * 11 + ["length"]
    assert events[-1].choices == [] and all(event.usage is None for event in events[:-1])
    counts = {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert events[-1].usage.model_dump(include=counts) == whole.usage.model_dump(include=counts)


def test_adapters_are_models(client, live, adapter):
    models = list(client.models.list())
    assert [(model.id, model.parent) for model in models] == [("tiny", None), ("poet", "tiny")]
    assert client.models.retrieve("poet").id == "poet"
    assert client.models.retrieve("tiny").max_model_len == 2048
    for ask in (client.models.retrieve, lambda name: complete(client, model=name)):
        with pytest.raises(openai.NotFoundError) as unknown:
            ask("poets")
        assert unknown.value.code == "model_not_found"
    own = tiny_engine(adapters={"poet": adapter})
    answers = [complete(client, "The sea", model=m).choices[0].text for m in ("tiny", "poet")]
    assert answers == [expected("The sea", name, own).text for name in (None, "poet")]
    assert answers[0] != answers[1]


def test_several_prompts_and_samples_are_numbered_in_order_and_token_ids_are_prompts(client):
    fields = {"n": 2, "seed": 3, "max_tokens": 5, "temperature": 1.0}
    answer = complete(client, ["ab", "cd"], **fields)
    requests = [expected(prompt, **fields).request for prompt in ("ab", "cd")]
    wanted = [completion.text for request in requests for completion in request.completions]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == wanted
    assert answer.usage.prompt_tokens == 4 and answer.usage.completion_tokens == 20
    assert texts(complete(client, ["ab", "cd"], stream=True, **fields)) == wanted
    for prompt, count in (([65, 66], 1), ([[65, 66], [67]], 2)):
        answer = complete(client, prompt)
        assert len(answer.choices) == count
        assert answer.choices[0].text == expected([65, 66]).text


SAMPLED = {"temperature": 1.3, "top_p": 0.8, "seed": 7, "max_tokens": 9, "top_k": 40}


@each_row(
    "fields",
    [
        SAMPLED | {"min_p": 0.01, "repetition_penalty": 1.2},
        {"frequency_penalty": 2.0, "logit_bias": {"65": 30}},
        {"presence_penalty": 2.0, "logit_bias": {"65": 30}},
        {"logit_bias": {"65": 100}},  # it decides every token
        {"stop": "A", "logit_bias": {"65": 20}},
    ],
)
def test_parameters_reach_the_engine(client, fields):
    [choice] = complete(client, "The sea", **fields).choices
    biases = {int(token): bias for token, bias in fields.get("logit_bias", {}).items()}
    wanted = expected("The sea", **fields | {"logit_bias": biases})
    assert (choice.text, choice.finish_reason) == (wanted.text, wanted.finish_reason)
    if fields == {"logit_bias": {"65": 100}}:
        assert choice.text == 12 * "A"


def test_log_probabilities_of_a_completion_with_echo(client):
    fields = {"logprobs": 2, "echo": True, "max_tokens": 2}
    [choice] = complete(client, "aé", **fields).choices
    wanted = expected("aé", max_tokens=2, logprobs=2, prompt_logprobs=2)
    logprobs = choice.logprobs
    assert choice.text == "aé" + wanted.text
    assert logprobs.tokens[:3] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs.text_offset[:3] == [0, 1, 1]
    values = [part.logprob for part in wanted.request.prompt_logprobs[1:] + wanted.logprobs]
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert logprobs.token_logprobs[1:] == pytest.approx(values, abs=1e-5)
    assert all(2 <= len(top) <= 3 for top in logprobs.top_logprobs[1:])
    tops = zip(
        logprobs.top_logprobs[1:], logprobs.tokens[1:], logprobs.token_logprobs[1:], strict=True
    )
    assert all(top[token] == value for top, token, value in tops)
    choices = [event.choices[0] for event in complete(client, "aé", stream=True, **fields)]
    assert "".join(part.text for part in choices) == choice.text
    assert [o for part in choices for o in part.logprobs.text_offset] == logprobs.text_offset
    assert [t for part in choices for t in part.logprobs.tokens] == logprobs.tokens


def test_echo_without_new_tokens_scores_the_prompt(client):
    fields = {"max_tokens": 0, "echo": True, "logprobs": 1}
    answer = complete(client, "abc", **fields)
    [choice] = answer.choices
    wanted = expected("abc", max_tokens=1, prompt_logprobs=1).request.prompt_logprobs
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs.tokens == ["a", "b", "c"] and choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(
        [entry.logprob for entry in wanted[1:]], abs=1e-5
    )
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)
    [event] = complete(client, "abc", stream=True, **fields)
    assert event.choices[0].model_dump() == choice.model_dump()
    with pytest.raises(openai.BadRequestError, match="max_tokens is 0"):
        complete(client, "abc", max_tokens=0)


def test_log_probabilities_of_a_chat(client):
    [choice] = chat(client, logprobs=True, top_logprobs=3).choices
    wanted = expected(chat_prompt("Hi", MODEL.tokenizer), logprobs=3)
    content = choice.logprobs.content
    assert [entry.logprob for entry in content] == pytest.approx(
        [entry.logprob for entry in wanted.logprobs], abs=1e-5
    )
    assert [entry.bytes for entry in content] == [[token] for token in wanted.tokens]
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in content)  # greedy


def test_the_prefix_cache_is_seen_in_the_usage_and_shared_under_one_salt(client):
    def cached(salt):
        prompt = list(range(100, 140))  # five blocks of 8; the last token is always computed
        usage = complete(client, prompt, max_tokens=1, cache_salt=salt).usage
        return usage.prompt_tokens_details.cached_tokens

    assert [cached(salt) for salt in (None, "one", "two", "one", None)] == [0, 0, 0, 32, 32]


def test_an_empty_answer_and_an_empty_system_text_can_come_back(client):
    """As OpenAI's API takes them: the first is what this server may have answered itself."""
    user = {"role": "user", "content": "Hi", "name": "ada"}
    answer = {"role": "assistant", "content": "", "refusal": None, "tool_calls": []}
    empty, none = chat(client, messages=[user, answer, user]), chat(client, messages=[user, user])
    assert empty.usage.prompt_tokens > none.usage.prompt_tokens, "it stays a turn"
    system = {"role": "system", "content": " "}
    assert chat(client, messages=[system, user]).choices == chat(client).choices


WRONG = [
    (b"{", None, "not valid JSON"),
    (b'{"a": "\xff"}', None, "cannot be read"),
    (b"[" * 100_000, None, "cannot be read"),
    (b"[]", None, "must be a JSON object"),
    ({"model": "tiny"}, "prompt", "prompt is missing"),
    ({"model": 5, "prompt": "a"}, "model", "string"),
    *(
        ({"model": "tiny", "prompt": prompt}, "prompt", "expected a text, a list of texts")
        for prompt in (5, [], {}, [None], ["a", 5], [[5], 5], [True], [5.0])
    ),
    ({"model": "tiny", "prompt": ""}, None, "at least one token"),
    ({"model": "tiny", "prompt": [259]}, None, "0 to 258"),
    ({"model": "tiny", "prompt": "\ud800"}, "prompt", "surrogates not allowed"),
    *(
        ({"model": "tiny", "prompt": "a", name: value}, name, message)
        for name, value, message in (
            ("temperature", "1", "number"),
            ("temperature", -1, "a number of at least 0"),
            ("max_tokens", 0, "at least 1"),
            ("max_tokens", 10**9, "at most 4096"),
            ("n", 17, "at most 16 samples"),
            ("seed", 1.5, "integer"),
            ("stop", [""], "1 to 256 characters"),
            ("logprobs", 21, "0 to 20"),
            ("repetition_penalty", 1e-40, "or equal to 0.01"),  # logits would overflow
            ("repetition_penalty", 1e40, "or equal to 100"),
            ("seed", 10**4000, "less than 9223372036854775808"),
            ("best_of", 2, "does not support"),
            ("logit_bias", {"5": float("-inf")}, "from -100 to 100"),
            ("logit_bias", {"1" * 5000: 1}, "token ids"),
            ("logit_bias", {str(n): 1 for n in range(50_000)}, "at most 1024"),
            ("cache_salt", "s" * 100_000, "a string of 1 to 256"),
            ("metadata", {str(n): "b" for n in range(17)}, "at most 16 items"),
            ("service_tier", "best", "'auto'"),
            ("priority", 0, "has no field"),
        )
    ),
    ({"model": "tiny", "prompt": "a", "logit_bias": {"259": 1}}, None, "from 0 to 258"),
    ({"model": "tiny", "prompt": "a", "metadata": {"a": "b" * 513}}, "metadata.a", "at most 512"),
    ({"model": "tiny", "prompt": "a", "stream_options": {}}, None, "stream is false"),
    ({"model": "tiny", "prompt": "a", "stream_options": {"x": 1}}, "stream_options.x", "no field"),
    ({"model": "tiny", "prompt": [65] * 2048}, "prompt", "at most 2047 tokens"),
    ({"model": "tiny", "prompt": [65] * 2040, "max_tokens": 9}, "prompt", "2048 tokens of"),
    ({"model": "tiny", "prompt": ["a"] * 17}, "n", "17 prompts"),
]


@each_row(("body", "param", "message"), WRONG)
def test_a_wrong_completion_request_is_told_what_is_wrong(live, body, param, message):
    status, answer = live.post("/v1/completions", body)
    error = answer["error"]
    assert status == 400 and message in error["message"], answer
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


IMAGE = {"type": "image_url", "text": ""}
WRONG_CHATS = [
    ({}, "messages", "messages is missing"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": [{"role": "system", "content": ""}]}, "messages", "at least one"),
    ({"messages": [{"role": "user"}]}, "messages.0.content", "missing"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "expected a text"),
    ({"messages": [{"role": "user", "content": " "}]}, "messages", "blank text"),
    ({"messages": [{"role": "user", "content": "\udfff"}]}, "messages", "surrogate"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages", "unknown role"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0.type", "'text'"),
    ({"messages": [{"role": "user", "content": "", "a": 1}]}, "messages.0.a", "has no field"),
    ({"top_logprobs": 2}, None, "logprobs is false"),
    ({"logprobs": True, "top_logprobs": 21}, None, "from 0 to 20"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, None, "differ"),
]


@each_row(("fields", "param", "message"), WRONG_CHATS)
def test_a_wrong_chat_request_is_told_what_is_wrong(live, fields, param, message):
    body = {"messages": [{"role": "user", "content": "Hi"}]} | fields if fields else {}
    status, answer = live.post("/v1/chat/completions", {"model": "tiny"} | body)
    assert status == 400 and message in answer["error"]["message"], answer
    assert answer["error"]["param"] == param


def test_fields_that_ask_for_nothing_are_accepted_and_developers_write_system_messages(client):
    neutral = {"best_of": 1, "presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": {}}
    assert complete(client, suffix=None, user="me", **neutral).choices
    neutral = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    neutral |= {"store": False, "metadata": {"run": "7"}, "max_tokens": None}
    neutral |= {"parallel_tool_calls": False, "top_k": -1}
    assert chat(client, max_completion_tokens=1, **neutral).choices
    assert chat(client, service_tier="auto").service_tier == "default"  # the one that exists
    assert chat(client).service_tier is None
    answers = []
    for role in ("developer", "system"):
        turns = [{"role": role, "content": "Be kind."}, {"role": "user", "content": "Hi"}]
        answer = chat(client, messages=turns)
        answers.append((answer.usage.prompt_tokens, answer.choices[0].message.content))
    assert answers[0] == answers[1]
    assert answers[0][0] > len(MODEL.tokenizer(chat_prompt("Hi", MODEL.tokenizer)).input_ids)


def test_only_json_is_read(live):
    """A web page may send text/plain to any address without asking."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        status, answer = live.post("/v1/completions", body, [f"Content-Type: {kind}"])
        assert status == 400 and "Content-Type: application/json" in answer["error"]["message"]


def test_a_model_without_a_chat_template_says_so():
    engine = tiny_engine()
    engine.tokenizer = load("tiny").tokenizer
    engine.tokenizer.chat_template = None
    with serving(engine) as live, pytest.raises(openai.BadRequestError, match="no chat template"):
        chat(live.client())


def test_long_answers_end_at_the_servers_limit():
    with serving(max_tokens=20) as live:
        client = live.client()
        assert chat(client, "a", max_tokens=None).usage.completion_tokens == 20
        with pytest.raises(openai.BadRequestError, match="at most 20"):
            complete(client, max_tokens=21)


@each_row(
    ("path", "fields", "tokens"),
    [
        ("completions", {"prompt": "a" * 31}, "31"),
        ("completions", {"prompt": [65] * 31}, "31"),
        ("completions", {"prompt": ["a", "a" * 32]}, "32"),
        ("completions", {"prompt": "a" * 31, "max_tokens": 2040}, "31"),
        ("completions", {"prompt": "a b " * 31}, "at least 6[0-9]"),  # refused before it is encoded
        ("chat/completions", {"messages": [{"role": "user", "content": "a" * 31}]}, "50"),
    ],
)
def test_a_prompt_over_the_servers_limit_is_refused_with_its_size_and_the_limit(
    short_prompts, path, fields, tokens
):
    status, answer = short_prompts.post(f"/v1/{path}", {"model": "tiny"} | fields)
    error = answer["error"]
    message = rf"the prompt has {tokens} tokens: this server takes prompts of at most 30 tokens"
    assert status == 400 and re.fullmatch(message, error["message"])
    field = "messages" if "messages" in fields else "prompt"
    wanted = {"type": "invalid_request_error", "param": field, "code": "context_length_exceeded"}
    assert error == wanted | {"message": error["message"]}


def test_a_prompt_at_the_servers_limit_is_answered_if_its_answer_has_room(short_prompts):
    client = short_prompts.client()
    assert complete(client, "a" * 30, max_tokens=1).usage.prompt_tokens == 30
    message = "has 30 tokens, and max_tokens is 2019: this server takes at most 2048 tokens of"
    with pytest.raises(openai.BadRequestError, match=message):
        complete(client, "a" * 30, max_tokens=2019)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=6,
)
FIELDS = [*CompletionRequest.model_fields, *NEUTRAL, "nonsense"]


@settings(max_examples=30)
@given(VALUES, st.sampled_from([field for field in FIELDS if field != "stream"]))
def test_no_value_of_any_field_fails_the_server(live, value, name):
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1} | {name: value}
    status, _ = live.post("/v1/completions", body)
    assert status in (200, 400, 404)
