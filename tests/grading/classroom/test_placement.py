"""Which worker runs which submission: nothing is lost, and only who kills workers is given up."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.grading.classroom.cluster.placement import (
    FAILS,
    MOST_LOST,
    ListedWorker,
    SubmissionPlacement,
    gpus_in,
)


def placement(*names, need="none", room=2, gpus=()):
    made = SubmissionPlacement(need)
    listed = {name: ListedWorker(name, float(name in gpus), name) for name in names}
    made.update(listed)
    for name in names:
        made.workers[name].room = room
    return made, listed


def take_down_two(made, listed):
    """Submission 1 runs on two workers, one after the other, which both end."""
    made.add(1)
    for _ in range(2):
        ((_, address),) = made.place()
        del listed[address]
        made.update(listed)


def test_submissions_are_spread_and_wait_when_all_workers_are_busy():
    made, _ = placement("a", "b")
    for number in range(5):
        made.add(number)
    assert sorted(address for _, address in made.place()) == ["a", "a", "b", "b"]
    assert made.place() == []
    made.done(0)
    assert [number for number, _ in made.place()] == [4]


def test_what_must_run_alone_is_counted_while_it_waits():
    made, listed = placement("a", "b", "c", room=2)
    take_down_two(made, listed)
    made.workers["c"].open = False
    assert made.place() == [] and made.waiting_alone() == 1
    made.workers["c"].open = True
    assert made.place() == [(1, "c")] and made.waiting_alone() == 0


def test_what_a_lost_worker_ran_goes_to_another_one_before_the_rest():
    made, listed = placement("a", "b", room=1)
    for number in (1, 2, 3):
        made.add(number)
    placed = dict(made.place())
    del listed[placed[1]]
    assert made.update(listed) == ([], [1])
    made.done(2)
    assert made.place() == [(1, placed[2])]


def test_a_worker_that_comes_back_under_its_address_is_another_one():
    made, listed = placement("a")
    made.add(1)
    made.place()
    listed["a"] = ListedWorker("a", 0.0, "another")
    assert made.update(listed) == (["a"], [1])
    assert made.place() == []  # it is not known yet whether it can run submissions


def test_what_has_lost_two_workers_runs_alone_and_last():
    made, listed = placement("a", "b", "c", room=2)
    take_down_two(made, listed)
    for number in (2, 3):
        made.add(number)
    assert [number for number, _ in made.place()] == [2, 3]  # the worker is busy
    made.done(2)
    assert made.place() == []
    made.done(3)
    assert [number for number, _ in made.place()] == [1]
    made.add(4)
    assert made.place() == [] and made.workers["c"].alone
    made.done(1)
    assert [number for number, _ in made.place()] == [4]


@pytest.mark.parametrize(("need", "used"), [("none", "ab"), ("optional", "b"), ("required", "b")])
def test_what_can_use_a_gpu_runs_only_on_workers_that_have_one(need, used):
    made, _ = placement("a", "b", need=need, room=1, gpus=("b",))
    for number in range(3):
        made.add(number)
    assert {address for _, address in made.place()} == set(used)
    assert made.uses_gpu("b") == (need != "none") and not made.uses_gpu("a")
    assert made.wants("a") == (need != "required")


def test_without_any_gpu_only_what_needs_one_can_not_run():
    assert placement("a", need="required")[0].no_gpu()
    assert not SubmissionPlacement("required").no_gpu()  # there are no workers yet
    assert not placement("a", need="optional")[0].no_gpu()
    assert placement("a", need="optional")[0].room() == 2


def test_only_whole_gpus_count():
    counts = {2.0: 2.0, 0.5: 0.0, float("nan"): 0.0, 10**6: 0.0, True: 0.0}
    assert [gpus_in({"GPU": count}) for count in counts] == list(counts.values())
    assert gpus_in({}) == gpus_in(None) == 0.0


def test_a_worker_that_is_paused_or_about_to_end_gets_nothing_new():
    made, listed = placement("a")
    listed["a"] = ListedWorker("a", 0.0, "a", running=False)
    made.update(listed)
    made.add(1)
    assert made.place() == []


def test_all_refused_workers_are_named_with_the_reason():
    made, _ = placement("a", "b")
    made.workers["a"].refused = "old"
    assert made.refusals() == []
    made.workers["b"].refused = "no sandbox"
    assert made.refusals() == ["a: old", "b: no sandbox"] and made.room() == 0


def test_what_fails_on_a_worker_runs_on_another_one_and_who_fails_alone_is_blamed():
    made, _ = placement("bad", "good", room=1)
    for number in range(9):
        made.add(number)
    ended = []
    blamed = {}
    for _ in range(40):
        for number, address in made.place():
            if address == "bad":
                assert made.failed(number, address, "no space left")
            else:
                blamed |= made.ran(number, address)
                made.done(number)
                ended.append(number)
        for address, why in blamed.items():
            made.workers[address].refused = why
    assert sorted(ended) == list(range(9))
    assert blamed == {"bad": f"{FAILS} (no space left)"}


def test_what_fails_everywhere_is_answered_and_nobody_is_blamed():
    made, _ = placement("a", "b", "c", "d", room=1)
    for number in range(8):
        made.add(number)
        tried = []
        for tries in (1, 2, 3):
            ((_, address),) = made.place()
            tried.append(address)
            assert made.failed(number, address, "why") == (tries < 3)
        assert len(set(tried)) == 3
        made.done(number)
    made.add(9)
    ((_, address),) = made.place()
    assert made.ran(9, address) == {}


def test_with_one_worker_what_fails_there_is_answered_at_once():
    made, listed = placement("a")
    made.add(1)
    made.place()
    assert not made.failed(1, "a", "why")
    made, listed = placement("a", "b")
    made.add(1)
    ((_, first),) = made.place()
    assert made.failed(1, first, "why")
    (other,) = set(listed) - {first}
    made.update({first: listed[first]})
    assert made.place() == [(1, first)]  # as the other one is gone
    assert not made.failed(1, first, "why") and other not in made.workers


def test_workers_that_do_not_reply_count_as_lost():
    made, _ = placement("a", "b", "c", room=1)
    made.add(1)
    for _ in range(MOST_LOST):
        assert not made.given_up(1)
        ((_, address),) = made.place()
        made.workers[address].refused = "silent"
        made.silent(1)
    assert made.given_up(1) and made.place() == []
    made.done(1)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3))
def test_killers_end_after_three_workers_and_nobody_else_is_given_up(seed, workers, room):
    """Every third submission kills its worker as soon as it runs; a new one starts for it."""
    rng = random.Random(seed)
    made = SubmissionPlacement("none")
    names = iter(range(10**6))
    listed = {str(next(names)): None for _ in range(workers)}
    running = {}
    ended = {}
    kills = dict.fromkeys(range(0, 12, 3), 0)
    for number in range(12):
        made.add(number)
    for _ in range(500):
        listed = {name: ListedWorker(name, 0.0, name) for name in listed}
        new, lost = made.update(listed)
        for number in lost:
            del running[number]
            if made.given_up(number):
                made.done(number)
                ended[number] = "given up"
        for address in new:
            made.workers[address].room = room
        for number, address in made.place():
            assert number not in running and number not in ended
            running[number] = address
        if not running:
            break
        number = rng.choice(sorted(running))
        if number in kills:
            kills[number] += 1
            del listed[running[number]]
            listed[str(next(names))] = None
        else:
            del running[number]
            made.done(number)
            ended[number] = "done"
    assert ended == {n: "given up" if n % 3 == 0 else "done" for n in range(12)}
    assert set(kills.values()) <= set(range(1, MOST_LOST + 1))
