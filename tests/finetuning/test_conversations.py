"""A conversation that exists is valid, and each kind of problem has its own name."""

import pytest

from course_pkg.finetuning.conversations import (
    Conversation,
    Message,
    Problem,
    ProblemReport,
    RecordError,
)
from tests.tables import each_row

SYSTEM = Message("system", "Rhyme.")
USER = Message("user", "Hi")
ANSWER = Message("assistant", "Yo")


@each_row("messages", [(USER, ANSWER), (SYSTEM, USER, ANSWER), (USER, ANSWER, USER, ANSWER)])
def test_a_conversation_keeps_its_messages(messages):
    conversation = Conversation(list(messages), id="a")
    assert conversation.messages == messages and conversation.id == "a"
    assert conversation.answers == (ANSWER,) * messages.count(ANSWER)


@each_row(
    ("messages", "kind", "says"),
    [
        ([], "no messages", "no turn"),
        ([USER], "no final answer", "the last turn is by the user"),
        ([SYSTEM], "no final answer", "the last turn is by the system"),
        ([ANSWER], "roles out of order", "turn 1 is by the assistant, expected the user"),
        ([USER, USER, ANSWER], "roles out of order", "turn 2 is by the user, expected the assi"),
        ([USER, SYSTEM, ANSWER], "roles out of order", "turn 2 is by the system"),
        ([SYSTEM, SYSTEM, USER, ANSWER], "second system turn", "turn 2 is the second system turn"),
    ],
)
def test_another_order_is_refused(messages, kind, says):
    with pytest.raises(RecordError, match=says) as error:
        Conversation(messages)
    assert error.value.kind == kind


@each_row(
    ("role", "content", "kind", "says"),
    [
        ("tool", "42", "unknown role", "'tool'; the roles are system, user, assistant"),
        (["user"], "Hi", "unknown role", "user"),
        ("user", " \n", "blank text", r"the user's text is ' \\n'"),
        ("system", "", "blank text", "the system's text is ''"),
        ("assistant", "\u3000", "empty answer", "the assistant's text is"),
        ("user", "a\ud800", "invalid text", r"'\\ud800' at character 1 is half of a surrogate"),
    ],
)
def test_a_message_needs_a_known_role_and_text(role, content, kind, says):
    with pytest.raises(RecordError, match=says) as error:
        Message(role, content)
    assert error.value.kind == kind


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="content must be a string, got 3"):
        Message("user", 3)
    with pytest.raises(TypeError, match=r"messages must be Messages, got .*write Message\("):
        Conversation(({"role": "user", "content": "Hi"}, ANSWER))


def test_a_report_counts_kinds_and_lists_the_first_three_of_each():
    problems = [Problem(f"line {number}", "empty answer", "''") for number in (2, 3, 5, 8, 9)]
    problems.insert(1, Problem("line 3", "missing field", "no output"))
    report = ProblemReport(total=9, kept=3, problems=tuple(problems))
    assert report.counts() == {"empty answer": 5, "missing field": 1}
    assert str(report).splitlines() == [
        "9 records: 3 kept, 6 problems",
        "  5 × empty answer",
        "      line 2: ''",
        "      line 3: ''",
        "      line 5: ''",
        "      and 2 more",
        "  1 × missing field",
        "      line 3: no output",
    ]
    assert str(ProblemReport(1, 1)) == "1 record: 1 kept, 0 problems"
