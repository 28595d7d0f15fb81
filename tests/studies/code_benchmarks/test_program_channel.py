"""Plain values come back as they were; nothing else crosses, and bad messages are errors."""

import json
import math
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.studies.code_benchmarks import program_channel as plain_values
from course_pkg.studies.code_benchmarks.program_channel import (
    MessageTooLong,
    NotSendable,
    from_plain,
    receive,
    send,
    to_plain,
)
from tests.refusals import require_refusals

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
SCALARS |= st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(SCALARS, inner)
        | st.sets(SCALARS)
        | st.frozensets(SCALARS)
    ),
    max_leaves=8,
)


def typed(value):
    """A value with the types of all its parts, so that True isn't 1 and (1,) isn't [1]."""
    if isinstance(value, dict):
        return dict, [(typed(key), typed(held)) for key, held in value.items()]
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return type(value), [typed(held) for held in value]
    return type(value), repr(value)


@settings(max_examples=20)
@given(VALUES)
def test_values_come_back_with_their_types(value):
    assert typed(from_plain(json.loads(json.dumps(to_plain(value))))) == typed(value)


def test_not_a_number_comes_back():
    assert math.isnan(from_plain(to_plain(math.nan)))
    assert from_plain(to_plain(-math.inf)) == -math.inf


def test_other_objects_do_not_cross():
    for value in (object(), print, iter([]), [object()], {1: range(3)}, int):
        with pytest.raises(NotSendable, match="can't be compared"):
            to_plain(value)


def test_what_was_not_written_so_is_an_error():
    require_refusals(
        (1, "not a plain value"),
        (1.5, "not a plain value"),
        ([], "not a plain value"),
        ({}, "not a plain value"),
        ({"list": 3}, "not a plain value"),
        ({"int": "x"}, "not a plain value"),
        ({"int": 5}, "not a plain value"),
        ({"object": []}, "not a plain value"),
        ({"set": [{"list": []}]}, "not a plain value"),
        ({"dict": [[{"dict": []}, None]]}, "not a plain value"),
        ({"dict": [[1]]}, "not a plain value"),
        ({"float": "nonsense"}, "not a plain value"),
        ({"bytes": "0"}, "not a plain value"),
        ({"int": "1", "float": "1"}, "not a plain value"),
        ({"complex": ["1"]}, "not a plain value"),
        of=from_plain,
    )


def test_messages_are_bounded_and_end_with_the_channel(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, {"value": to_plain([1, "é"])})
        assert from_plain(receive(theirs)["value"]) == [1, "é"]
        monkeypatch.setattr(plain_values, "MOST_BYTES", 100)
        with pytest.raises(MessageTooLong, match="at most 100"):
            send(ours, {"value": "x" * 101})
        ours.sendall((101).to_bytes(4, "big"))
        with pytest.raises(MessageTooLong, match="101 bytes"):
            receive(theirs)
        for content in (b"[1]", b"{", b"[" * 100):
            ours.sendall(len(content).to_bytes(4, "big") + content)
            with pytest.raises(ValueError, match="not a message"):
                receive(theirs)
        ours.sendall((50).to_bytes(4, "big") + b"cut off")
        ours.close()
        assert receive(theirs) is None
