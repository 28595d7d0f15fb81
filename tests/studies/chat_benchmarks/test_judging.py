"""Questions, conversations, verdicts, and judging with scripted judges."""

import json

import pytest

from course_pkg.lm.load import load
from course_pkg.studies.chat_benchmarks.held_conversations import (
    HeldConversation,
    answer_text,
    compare_all,
    compare_conversations,
    grade_conversation,
    greedy_writer,
    hold_conversations,
    load_chat_questions,
    parse_verdict,
    reference_conversations,
)
from course_pkg.studies.judge.geval import JudgeError
from course_pkg.studies.judge.local import LocalJudge
from tests.refusals import require_refusals
from tests.studies.judge.judges import RuleJudge


def two(first=("short", "short"), second=("a longer answer", "a longer answer")):
    question = load_chat_questions("two-turn")[0]
    return HeldConversation(question, "x", first), HeldConversation(question, "y", second)


def longer(prompt):
    """The probabilities of a judge that prefers the longer answer."""
    before, b = prompt.split("\n\nWhich answer")[0].rsplit("Answer B:\n", 1)
    a = before.rsplit("Answer A:\n", 1)[1]
    return {"A": 0.9, "B": 0.1} if len(a.strip()) > len(b.strip()) else {"A": 0.1, "B": 0.9}


def mute(prompt):
    raise JudgeError("no answer")


def test_each_question_has_one_reference_for_each_turn_and_no_text_twice():
    for name, turns in (("two-turn", 2), ("single-turn", 1)):
        questions = load_chat_questions(name)
        assert len({each.id for each in questions}) == 24
        assert len({each.turns[0] for each in questions}) == 24
        for each in questions:
            assert len(each.turns) == len(each.references) == turns
            assert all(text == text.strip() and text for text in each.turns + each.references)


def test_the_second_turn_sees_the_models_own_first_answer_and_no_reference():
    seen = []

    def write(chats):
        seen.extend(chats)
        return [f"answer {len(chat)}" for chat in chats]

    questions = load_chat_questions("two-turn")[:2]
    held = hold_conversations(write, questions, "me")
    assert [each.answers for each in held] == [("answer 1", "answer 3")] * 2
    second = seen[2]
    assert [turn["role"] for turn in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == "answer 1"
    assert questions[0].references[0] not in json.dumps(second)


def test_swapping_the_conversations_mirrors_the_outcome():
    x, y = two()
    judge = RuleJudge(longer)
    forward = compare_conversations(judge, x, y)
    backward = compare_conversations(judge, y, x)
    for rule, want in (("agree", 0.0), ("average", 0.1)):
        for there, back in zip(forward, backward, strict=True):
            assert there.outcome(rule) == pytest.approx(want)
            assert there.outcome(rule) == pytest.approx(1 - back.outcome(rule))
    assert (forward[0].first_length, forward[0].second_length) == (5, 15)


def test_the_second_turn_is_judged_with_the_whole_conversation_in_view():
    judge = RuleJudge(longer)
    x, y = two(("one", "two"), ("three", "four"))
    compare_conversations(judge, x, y)
    for text in (*x.question.turns, "one", "two", "three", "four"):
        assert text in judge.asked[-1][0]
    assert x.question.turns[1] not in judge.asked[0][0]


def test_a_written_verdict_is_read_unless_it_contradicts_itself():
    assert parse_verdict("I'd say [[B]], not [[A]]") is None
    assert parse_verdict("[[A]] … so [[A]]") == 1.0
    with pytest.raises(TypeError, match="must be a string"):
        parse_verdict(None)


def test_grades_are_means_and_a_judge_without_an_answer_gives_none():
    x, y = two()
    any_grade = RuleJudge({str(grade): 0.1 for grade in range(1, 11)})
    assert grade_conversation(any_grade, x) == pytest.approx([5.5, 5.5])
    assert grade_conversation(RuleJudge(mute), x) == [None, None]
    outcomes = [turn.outcome() for turn in compare_conversations(RuleJudge(mute), x, y)]
    assert outcomes == [None, None]
    assert answer_text(two(first=("", "later"))[0], 1) == "(no answer)"


def test_what_cannot_be_held_or_compared_is_refused(tiny):
    questions = load_chat_questions()[:2]
    [one, other] = reference_conversations(questions)
    judge = RuleJudge(longer)
    tiny.tokenizer.chat_template = None
    require_refusals(
        (lambda: load_chat_questions("mt-bench"), "two-turn, single-turn"),
        (lambda: hold_conversations(lambda chats: ["x"], questions, "me"), "1 answers to 2 chats"),
        (lambda: hold_conversations(lambda chats: [], [], "me"), "empty"),
        (lambda: compare_conversations(judge, one, other), "the same question"),
        (lambda: compare_all(judge, [one], [one, other]), "1 and 2 conversations"),
        (lambda: greedy_writer(*tiny), "no chat template"),
    )


def test_a_local_model_answers_both_turns_and_judges_in_both_orders(monkeypatch):
    tiny = load("tiny")
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    monkeypatch.setattr(tiny.tokenizer, "chat_template", template)
    write = greedy_writer(*tiny, max_new_tokens=3, system="Be brief.")
    held = hold_conversations(write, load_chat_questions()[:1], "tiny")
    [reference] = reference_conversations(load_chat_questions()[:1])
    assert len(held[0].answers) == 2
    for each in compare_conversations(LocalJudge(*tiny), held[0], reference):
        assert 0 < each.as_a < 1 and 0 < each.as_b < 1
