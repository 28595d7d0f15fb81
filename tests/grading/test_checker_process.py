"""The checker: nothing is revealed, the last answer in time counts, and every answer is judged."""

import os
import signal
import socket
import threading
import time

import pytest

from course_pkg.grading import check
from course_pkg.grading.checker_process import _reply, as_json, safe_verdict, serve
from course_pkg.grading.classroom.runs.scoring import checked_results
from course_pkg.grading.questions.draws import PUBLIC_SECRET
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.plain_values import send
from course_pkg.grading.questions.question_record import notes

KEY = b"\x07" * 32
ASSIGNMENT = "lora-math"


@pytest.fixture
def ask():
    session = GradingSession(ASSIGNMENT, "ada", KEY)
    return lambda request: _reply(request, session)


def test_the_own_case_is_that_of_the_submissions_student(ask):
    own = GradingSession(ASSIGNMENT, "ada").variant("by-hand")
    assert ask({"op": "variant", "variant": "by-hand"}) == {"inputs": own}


def test_draws_are_not_those_of_the_public_key(ask):
    secret, public = (
        GradingSession(ASSIGNMENT, "ada", key).inputs("counts") for key in (KEY, PUBLIC_SECRET)
    )
    assert secret != public
    assert ask({"op": "inputs", "question": "counts"})["inputs"] == secret


def right_answers():
    """A session, and the right outcomes for the cases of `counts` in it."""
    session = GradingSession(ASSIGNMENT, "ada", KEY)
    return session, [{"value": case.expected} for case in session.cases("counts")]


def test_a_right_and_a_wrong_answer_get_the_same_reply(ask):
    _, right = right_answers()
    for outcomes in (right, [{"value": 0}] * len(right), [], "junk"):
        request = {"op": "record", "question": "counts", "outcomes": outcomes}
        assert ask(request) == {"recorded": True}


def test_a_question_that_can_not_be_judged_costs_only_itself_and_names_the_cause(monkeypatch):
    session, right = right_answers()
    session.inputs("counts")
    session.record("counts", right)
    verdict_on = GradingSession.verdict

    def fault(self, name, explain=True):
        if name == "merge":
            raise RuntimeError("out of ink")
        return verdict_on(self, name, explain)

    monkeypatch.setattr(GradingSession, "verdict", fault)
    assert safe_verdict(session, "counts").earned == 3
    verdict = safe_verdict(session, "merge")
    assert verdict.earned == 0
    reason = "your answer could not be judged (RuntimeError: out of ink)"
    assert {f.reason for f in verdict.failures.values()} == {reason}


@pytest.mark.parametrize("endless", [True, False])
def test_what_goes_wrong_in_recognizing_mistakes_costs_nothing(monkeypatch, endless):
    session, right = right_answers()
    session.inputs("counts")
    session.record("counts", [*right[:3], *({"value": 0} for _ in right[3:])])

    def fault(*_):
        while endless:
            pass
        raise RuntimeError("out of ink")

    monkeypatch.setattr("course_pkg.grading.questions.verdict.recognized", fault)
    verdict = safe_verdict(session, "counts", until=time.monotonic() + 0.05)
    assert verdict.earned == 2 and verdict.failures["match"].recognized == ()


def test_a_number_that_fits_the_notebooks_name_says_so():
    def reply(typed, answer):
        session = GradingSession(ASSIGNMENT, "Hana-M", KEY)
        _reply({"op": "variant", "variant": "by-hand", "student": typed}, session)
        session.inputs("by-hand/parameters")
        session.record("by-hand/parameters", [{"value": answer}])
        verdict = safe_verdict(session, "by-hand/parameters")
        return verdict.earned, verdict.failures["value"] and verdict.failures["value"].note

    def right(name):
        case = GradingSession(ASSIGNMENT, name).variant("by-hand")
        return case["rank"] * (case["d"] + case["k"])

    submitted = "but you submitted as 'Hana-M': your number fits"
    assert reply("Hana", right("Hana")) == (
        0,
        f"your notebook says 'Hana', {submitted} the case of 'Hana'",
    )
    assert reply("", right("")) == (0, f"your notebook has no name, {submitted} the example case")
    assert reply("Hana", 1) == (0, "")
    assert reply(" hana-m ", right("HANA-M")) == (1, None)


def test_the_case_of_a_students_other_names_is_theirs_and_a_classmates_is_not():
    """In Moodle the id is an address, and students type their names."""
    called = ("Ada Lovelace", "ada@uni.edu", "101")

    def earned(typed):
        session = GradingSession(ASSIGNMENT, "ada@uni.edu", KEY, called=called)
        session.cases("by-hand/parameters")  # another cell may have looked at it before
        case = _reply({"op": "variant", "variant": "by-hand", "student": typed}, session)["inputs"]
        assert (case == GradingSession(ASSIGNMENT, typed).variant("by-hand")) == bool(
            typed.strip() != "Grace Hopper"
        )
        session.inputs("by-hand/parameters")
        shown = GradingSession(ASSIGNMENT, typed).variant("by-hand")
        answer = shown["rank"] * (shown["d"] + shown["k"])
        session.record("by-hand/parameters", [{"value": answer}])
        return session.verdict("by-hand/parameters").earned

    own = ("ADA Lovelace ", "Lovelace, Ada", "Ada@Uni.edu", "101")
    assert [earned(typed) for typed in (*own, "Grace Hopper")] == [1, 1, 1, 1, 0]


def test_what_an_answer_waits_for_a_processor_does_not_count():
    now = 0.0
    session = GradingSession(ASSIGNMENT, "ada", KEY, clock=lambda: now)
    right = [{"value": case.expected} for case in session.cases("counts")]
    for waited_s, late_s in ((0.0, 65.0), (10.0, None), (float("nan"), 65.0), (-9.0, 65.0)):
        now = 0.0
        session.inputs("counts")
        now = 65.0
        said = {"op": "record", "question": "counts", "outcomes": right, "waited_s": waited_s}
        _reply(said, session)
        assert session.verdict("counts").late_s == late_s, waited_s


def test_a_name_of_hidden_characters_does_not_make_the_results_unusable():
    """Each takes ten characters to show, and the results may only have short texts."""
    typed = "\U000e0001" * 100
    session = GradingSession(ASSIGNMENT, "hana", KEY)
    session.variant("by-hand", typed)
    session.inputs("by-hand/parameters")
    case = GradingSession(ASSIGNMENT, typed).variant("by-hand")
    session.record("by-hand/parameters", [{"value": case["rank"] * (case["d"] + case["k"])}])
    results = checked_results(
        as_json([session.verdict(name) for name in session.questions]).encode(), session.questions
    )
    (note,) = notes(results)
    assert "your number fits the case of '" in note and len(note) < 400


def test_other_requests_are_refused_and_the_checker_goes_on(ask):
    unknown = {"op": "inputs", "question": "nothing"}
    for request in ({"op": "results"}, {"op": "inputs"}, unknown, [], "x", None):
        assert "error" in ask(request), request
        assert "inputs" in ask({"op": "inputs", "question": "counts"})


def test_the_last_complete_answer_counts():
    session, right = right_answers()
    session.inputs("counts")
    session.record("counts", [{"value": 0}] * len(right))
    session.record("counts", right)
    session.record("counts", right[:1])
    assert session.verdict("counts").earned == 3


class Timed:
    """A session with a clock that the test sets, and the right answer to `counts`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.session = GradingSession(ASSIGNMENT, "ada", KEY, clock=lambda: self.now)
        _, self.right = right_answers()

    def answer(self, took: float, outcomes: list | None = None):
        """The verdict after one call of `check` that takes `took` seconds."""
        self.session.inputs("counts")
        self.now += took
        self.session.record("counts", self.right if outcomes is None else outcomes)
        return self.session.verdict("counts")


def test_an_answer_before_the_inputs_does_not_count():
    timed = Timed()
    timed.session.record("counts", timed.right)
    assert timed.session.verdict("counts").earned == 0


def test_a_late_answer_is_named_late():
    unanswered = [{"unanswered": True}] * len(right_answers()[1])
    for before in (None, unanswered):
        timed = Timed()
        if before:
            timed.answer(1, before)
        verdict = timed.answer(65)
        assert (verdict.earned, verdict.late_s) == (0, 65)
        reasons = {failure.reason for failure in verdict.failures.values()}
        assert reasons == {"your answer arrived after 65 s; the limit is 60 s"}
    timed = Timed()
    timed.answer(1)
    assert (timed.answer(65).earned, timed.answer(65).late_s) == (3, 65)  # the first one counts
    assert timed.answer(1).late_s is None


def test_an_early_look_starts_no_clock():
    timed = Timed()
    timed.answer(1, [{"unanswered": True}] * len(timed.right))
    timed.now += 100
    verdict = timed.answer(59)
    assert (verdict.earned, verdict.late_s) == (3, None)


def interrupt_until(done):
    """Interrupt the process, again and again: one signal may come just before a call that waits."""
    while not done.wait(0.5):
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_while_waiting_for_the_checker_costs_no_later_answer(monkeypatch):
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(check, "_socket", ours)
    monkeypatch.setenv(check.CHECKER_FD, str(ours.fileno()))
    # A process that was started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Thread(target=interrupt_until, args=(interrupted := threading.Event(),))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):  # nobody replies yet
        try:
            check.check(f"{ASSIGNMENT}/counts", lambda *_: 1)
        finally:
            interrupted.set()
    interrupt.join()
    signal.signal(signal.SIGINT, before)
    session = GradingSession(ASSIGNMENT, "ada", KEY)
    server = threading.Thread(target=serve, args=(theirs, session))
    server.start()
    case = check.variant(f"{ASSIGNMENT}/by-hand", "ada")
    right = case["rank"] * (case["d"] + case["k"])
    check.check(f"{ASSIGNMENT}/by-hand/parameters", right)
    ours.close()
    server.join()
    assert session.verdict("by-hand/parameters").earned == 1


def test_junk_on_the_socket_ends_the_session_and_keeps_what_was_earned():
    mine, theirs = socket.socketpair()
    session, right = right_answers()
    send(mine, {"op": "inputs", "question": "counts"})
    send(mine, {"op": "record", "question": "counts", "outcomes": right})
    mine.sendall(b"\xff" * 64)
    serve(theirs, session)
    assert session.verdict("counts").earned == 3
