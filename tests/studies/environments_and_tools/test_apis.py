"""Calls of mock APIs: extraction, checks, execution, and comparison by outcome."""

import json

import pytest

from course_pkg.metrics.rouge import rouge_l
from course_pkg.serving.constrained.expression import matches
from course_pkg.serving.constrained.json_schema import schema_expression
from course_pkg.studies.environments_and_tools.api_dialogues import (
    LEVELS,
    call_prompt,
    load_dialogues,
    play_calls,
    reply_prompt,
    score_calls,
    score_reply,
)
from course_pkg.studies.environments_and_tools.apis import (
    ApiCall,
    CallError,
    call_guide,
    call_schema,
    extract_call,
    known_apis,
    run_calls,
)

DIALOGUES = load_dialogues()
APIS = known_apis()


def call(name: str, **arguments) -> ApiCall:
    return ApiCall(name, arguments)


def test_the_solutions_of_all_dialogues_score_100_percent():
    assert [sum(each.level == level for each in DIALOGUES) for level in LEVELS] == [14, 14, 14]
    for dialogue in (*DIALOGUES, *load_dialogues("api-dialogues-examples")):
        score = score_calls(dialogue, [str(each) for each in dialogue.calls])
        assert (score.valid, score.same_calls, score.same_outcome, score.error) == (1, 1, 1, "")
        assert score_reply(dialogue, dialogue.reply) == 1


def test_second_calls_need_a_result_of_the_first_one():
    for dialogue in DIALOGUES:
        if dialogue.level == "two calls":
            first, second = dialogue.calls
            [result] = run_calls([first]).results
            needed = set(result.values()) & set(second.arguments.values())
            assert needed and not any(value in dialogue.user for value in needed)


def test_the_first_call_is_found_between_other_text():
    for text in (
        '{"name": "list_events", "arguments": {"date": "2027-03-05"}}',
        'Sure: {"x": 1} then\n{"arguments": {"date": "2027-03-05"}, "name": "list_events"} done',
        '{{"name": "list_events", "arguments": {"date": "2027-03-05"}}}',
    ):
        assert extract_call(text) == call("list_events", date="2027-03-05")


def test_a_text_without_a_call_has_an_error_of_its_own():
    texts = ["", "list_events(date)", '{"name": "x"}', '{"name": 1, "arguments": {}}']
    for text in (*texts, "{" * 9, '{"a":' * 1500):
        with pytest.raises(CallError, match="no JSON object") as caught:
            extract_call(text)
        assert caught.value.kind == "none"


def test_each_kind_of_wrong_call_is_named():
    for asked, kind, reason in (
        (call("fly"), "unknown", "no API 'fly'"),
        (call("find_book"), "arguments", "needs the argument title"),
        (call("find_book", title="x", page=3), "arguments", "no argument 'page'"),
        (call("find_book", title=3), "arguments", "expected string"),
        (call("find_book", title=""), "arguments", "1 to 40 characters"),
        (call("set_timer", minutes=True), "arguments", "expected integer"),
        (call("set_timer", minutes=0), "arguments", "expected 1 to 999"),
        (call("list_events", date="March 5"), "arguments", "expected the pattern"),
        (call("convert_length", value=1, from_unit="km", to_unit="in"), "arguments", "one of"),
        (call("find_book", title="No Such Book"), "failed", "no book"),
        (call("send_message", address="x@example.org", text="x"), "failed", "no address"),
        (call("book_seat", train="T1", passenger="x"), "failed", "no train"),
    ):
        with pytest.raises(CallError, match=reason) as caught:
            run_calls([asked])
        assert caught.value.kind == kind


def test_calls_leave_the_given_state_as_it_was_and_a_calendar_lists_what_was_added():
    before = run_calls([call("add_to_list", item="eggs")]).state
    after = run_calls([call("add_to_list", item="Eggs", quantity=5)], before)
    assert before == {"shopping": {"eggs": 1}}
    assert after.state == {"shopping": {"eggs": 6}} and after.results[0]["quantity"] == 6
    add = call("add_event", title="Tea", date="2027-03-05", time="9:05")
    listed = run_calls([add, call("list_events", date="2027-03-05")]).results[1]
    assert listed == {"events": ["09:05 tea", "18:00 choir practice"]}


def by_user(part: str):
    return next(each for each in DIALOGUES if part in each.user)


def test_another_call_with_the_same_outcome_is_right_by_outcome_only():
    for part, asked in (
        ("doctor", call("add_event", title="Doctor", date="2027-03-11", time="09:30")),
        ("eggs", call("add_to_list", item="eggs", quantity=1)),
        ("12 minutes", call("set_timer", minutes=12, label="timer")),
        ("Gardens of Salt?", call("find_book", title="gardens of  salt")),
    ):
        score = score_calls(by_user(part), [str(asked)])
        assert (score.valid, score.same_calls, score.same_outcome) == (1, 0, 1)


def test_a_call_that_runs_and_does_something_else_is_wrong():
    score = score_calls(by_user("12 minutes"), [str(call("set_timer", minutes=13))])
    assert (score.valid, score.same_outcome, score.error) == (1, 0, "values")
    score = score_calls(by_user("12 minutes"), [str(call("find_book", title="Timer"))])
    assert (score.valid, score.same_outcome, score.error) == (1, 0, "failed")


def test_scores_need_a_text_for_each_call_and_replies_are_scored_by_rouge_l():
    with pytest.raises(ValueError, match="1 texts for the 2 calls"):
        score_calls(DIALOGUES[-1], ["{}"])
    with pytest.raises(TypeError, match="texts must be a list"):
        score_calls(DIALOGUES[0], "{}")
    text = "It is on shelf 2."
    assert score_reply(DIALOGUES[0], text) == rouge_l(text, DIALOGUES[0].reply).fmeasure > 0


def test_the_schema_admits_the_solutions_and_only_calls_that_fit():
    expression = schema_expression(call_schema(list(APIS.values())))
    for dialogue in DIALOGUES:
        for each in dialogue.calls:
            assert matches(expression, str(each).encode())
    for wrong in (
        call("fly"),
        call("find_book"),
        call("find_book", title="x", page=3),
        call("set_timer", minutes=0),
        call("list_events", date="2027-13-01"),
        call("find_book", title="x" * 41),
    ):
        assert not matches(expression, str(wrong).encode())


def test_a_guide_of_calls_writes_nothing_else():
    from course_pkg.serving.constrained.vocabulary import Vocabulary

    letters = Vocabulary([*(bytes([byte]) for byte in range(128)), b"</s>"], eos=[128])
    guide = call_guide([APIS["list_events"]], letters)
    state = guide.start
    for byte in b' {"name": "list_events", "arguments": {"date": "2027-0':
        state = guide.advance(state, byte)
    assert [chr(token) for token in guide.allowed(state)] == list("123456789")


def test_prompts_describe_what_the_level_allows_and_show_results_and_errors():
    first = DIALOGUES[0]
    last = DIALOGUES[-1]
    assert call_prompt(first, [], 0).count(": ") < call_prompt(last, [], 0).count(": ")
    assert all(f"\n{name}(" in call_prompt(last, [], 0) for name in APIS)
    prompt = call_prompt(last, [str(last.calls[0])], 4)
    assert prompt.count("User:") == 5 and prompt.endswith("}\nCall:")
    assert json.dumps(run_calls([last.calls[0]]).results[0]) in prompt
    assert reply_prompt(last, 1).endswith("}\nAssistant:")
    with pytest.raises(ValueError, match="there are 4"):
        call_prompt(first, [], 5)
    played = play_calls(["No.\nNever.", str(call("add_to_list", item="tea"))])
    assert played[0][0] == "No." and "error" in played[0][1]
    assert played[1][1] == {"item": "tea", "quantity": 1}
