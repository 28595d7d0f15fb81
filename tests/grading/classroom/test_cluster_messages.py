"""What a worker gets and replies: a task is complete, and any reply is read or refused."""

import contextlib
import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.grading.classroom.cluster.messages import (
    MAX_LINES,
    TOO_LARGE,
    Preparation,
    SubmissionTask,
    WorkerReply,
    most_bytes,
    preparation_bytes,
    read_reply,
    read_request,
    reply_bytes,
    task_bytes,
    work_of,
)
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.runner_output import (
    MAX_RESULTS,
    RunLimits,
    RunResult,
    State,
)
from course_pkg.grading.questions import registry

LIMITS = RunLimits(output_bytes=1000)
WORK = work_of(resolve("bleu"), LIMITS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def through(result: RunResult) -> RunResult:
    return read_reply(reply_bytes(WorkerReply("result", result=result), LIMITS), LIMITS).result


def changed(**facts: object) -> bytes:
    """A reply with one fact changed, as a hostile worker may send it."""
    lines = reply_bytes(WorkerReply("result", result=RunResult()), LIMITS).split(b"\n")
    last = json.loads(lines[-1])
    last["result"] |= facts
    return b"\n".join([*lines[:-1], json.dumps(last).encode()])


@given(st.text(min_size=1), st.binary(), st.binary())
def test_a_task_arrives_as_it_was_sent(student, key, packed):
    task = SubmissionTask(WORK, student, key, packed)
    assert read_request(task_bytes(task)) == task


def test_checks_travel_by_hash_and_with_their_content_only_if_asked():
    assert WORK.checks == resolve("bleu").hash != ""
    assert read_request(preparation_bytes(Preparation(WORK))) == Preparation(WORK)
    files = {n: c.decode() for n, c in registry.assignment_files("bleu").items()}
    asked = read_request(preparation_bytes(Preparation(WORK, files)))
    assert asked.files == files
    assert work_of(resolve("ps1"), LIMITS).checks == ""


@settings(max_examples=30)
@given(st.dictionaries(st.integers(0, 9_000), st.lists(JSON)), st.binary(max_size=500))
def test_a_result_arrives_as_it_was(outputs, verdicts):
    ended = (State.KERNEL_DIED, "the kernel died", verdicts, "", outputs, set(list(outputs)[:1]))
    result = RunResult(*ended, 0.5, 1.5, 2**33, "cgroup v2", ("a remark",), "Fake 0", 5)
    assert through(result) == result


def test_deep_or_large_outputs_are_left_out_and_the_verdicts_stay():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    arrived = through(RunResult(verdicts=b"[]", outputs={0: deep, 1: ["shown"]}))
    assert (arrived.outputs, arrived.verdicts) == ({0: [None], 1: ["shown"]}, b"[]")
    large = {0: ["x" * most_bytes(LIMITS)]}
    arrived = through(RunResult(verdicts=b"[]", outputs=large))
    assert (arrived.outputs, arrived.verdicts, arrived.remarks) == ({}, b"[]", (TOO_LARGE,))


IMPOSSIBLE = [{"state": "refused"}, {"state": ["graded"]}, {"state": "workers-lost"}]
IMPOSSIBLE += [{"reason": 3}, {"reason": "x" * 2000}, {"start_s": float("inf")}, {"run_s": True}]
IMPOSSIBLE += [{"peak_bytes": -1}, {"peak_bytes": 1.5}, {"gpu": None}, {"more": 1}]
IMPOSSIBLE += [{"remarks": "text"}, {"remarks": ["x"] * 11}]
IMPOSSIBLE += [{"verdicts": verdicts} for verdicts in ("*", None, "A" * (2 * MAX_RESULTS))]
OTHER_BYTES = [
    b"",
    b"[]",
    b"{}",
    b'{"kind": "fit", "why": "", "room": 33}',
    b'{"kind": "fit", "why": "", "room": 1, "room": 2}',
    b'{"kind": "root", "why": "", "room": 1}',
    b'{"kind": "result", "why": "", "room": 1}',
    b'{"kind": "fit", "why": [], "room": 1}',
    b" " * (most_bytes(LIMITS) + 1),
    b"\n" * MAX_LINES + changed(),
    b"[" * 2 * MAX_RESULTS,
    b'{"a":[' + b"{}," * 100 + b"{}]}",
    (b'{"cell":0,"outputs":[' + b"[]," * 66_000 + b"[]]}\n") * 9 + changed(),
]


def is_refused(data):
    try:
        read_reply(data, LIMITS)
    except ValueError:
        return True
    return False


def test_a_reply_that_no_run_can_give_is_refused():
    assert [facts for facts in IMPOSSIBLE if not is_refused(changed(**facts))] == []
    assert [data[:60] for data in OTHER_BYTES if not is_refused(data)] == []


def test_what_is_wrong_with_a_reply_is_one_line_without_what_it_holds():
    with pytest.raises(ValueError, match=r"^the last line: kind: Input should be .*'result'$"):
        read_reply(b'{"kind": "\\u001b[2Jroot", "why": "", "room": 1}', LIMITS)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(ValueError):
        read_reply(data, LIMITS)


def test_of_what_a_student_made_of_the_outputs_no_reply_is_refused_but_what_is_readable_shown():
    """A student who has taken over the runner chooses any JSON; that is not the worker's fault."""
    nested = {}
    for depth in range(700, 1_100, 2):
        nested[depth] = json.loads("[" * 700 + "]" * 700)
        for _ in range(depth - 700):
            nested[depth] = [nested[depth]]
    outputs = {0: ["shown"], 1: ["," * 300_000], 2**19: ["no such cell"], **nested}
    limits = RunLimits()
    sent = reply_bytes(
        WorkerReply("result", result=RunResult(verdicts=b"[]", outputs=outputs)), limits
    )
    arrived = read_reply(sent, limits).result
    assert arrived.outputs[0] == ["shown"] and arrived.verdicts == b"[]"
    assert not {1, 2**19} & arrived.outputs.keys()


def test_lines_that_are_no_cells_are_ignored_as_those_of_a_sandbox():
    for line in (b'{"cell": -1, "outputs": []}', b"not JSON", b"", b"[]"):
        assert read_reply(line + b"\n" + changed(), LIMITS).result == RunResult()


@pytest.mark.parametrize("checked", [False, True])
def test_a_reply_says_whether_the_grader_failed(checked):
    assert WorkerReply("failed", "no space").failure(checked) == "no space"
    failed = RunResult(State.GRADING_ERROR, "the machine ran short of memory")
    assert (
        WorkerReply("result", result=failed).failure(checked) == "the machine ran short of memory"
    )
    died = RunResult(State.KERNEL_DIED, verdicts=b"[]")
    assert not WorkerReply("result", result=died).failure(checked)
    assert not WorkerReply("unfit", "old").failure(checked)


def test_a_checker_that_wrote_nothing_is_a_failure_if_there_is_one():
    late = WorkerReply("result", result=RunResult(no_verdicts="it took longer than 60 s"))
    assert (late.failure(True), late.failure(False)) == ("it took longer than 60 s", "")
    assert WorkerReply("result", result=RunResult()).failure(True) == "its checker wrote no results"


def test_a_long_reason_with_many_commas_can_be_read():
    why = ", ".join(map(str, range(200)))
    assert read_reply(reply_bytes(WorkerReply("failed", why), LIMITS), LIMITS).why == why


def test_words_of_a_worker_can_not_move_the_cursor():
    reply = reply_bytes(WorkerReply("unfit", "a\x1b[2J\nb"), LIMITS)
    assert "\x1b" not in read_reply(reply, LIMITS).why


def test_every_field_of_a_result_is_sent():
    sent = json.loads(changed().split(b"\n")[-1])["result"].keys() | {"outputs", "unfinished"}
    assert sent == {field.name for field in dataclasses.fields(RunResult)}
