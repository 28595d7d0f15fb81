"""Text from tokens: characters over several tokens, stop strings over several tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.lm.tiny import EOS, tiny_tokenizer
from course_pkg.serving.text_stream import TextStream

TOKENIZER = tiny_tokenizer()
TEXTS = st.text("ab€\n", max_size=9)


def pieces(data, stop=()):
    """What each byte adds, and what comes at the end."""
    stream, found = TextStream(TOKENIZER, stop), []
    for byte in data if isinstance(data, bytes) else data.encode():
        found.append(stream.add(byte))
        if stream.stopped:
            return found
    return [*found, stream.finish()]


def test_a_character_appears_with_its_last_byte():
    assert pieces("a€b") == ["a", "", "", "€", "b", ""]


def test_an_incomplete_character_at_the_end_is_shown_as_such():
    assert pieces("a€".encode()[:-1]) == ["a", "", "", "\ufffd"]


def test_bytes_that_are_no_character_appear_with_the_next_one():
    assert pieces(b"\xff\xfea") == ["", "", "\ufffd\ufffda", ""]


def test_special_tokens_have_no_text():
    stream = TextStream(TOKENIZER)
    assert [stream.add(t) for t in (65, TOKENIZER.convert_tokens_to_ids(EOS), 66)] == ["A", "", "B"]


def test_a_possible_beginning_of_a_stop_string_is_held_back():
    assert pieces("abxaby", ["aby"]) == ["", "", "abx", "", "", ""]
    assert pieces("aab", ["aab"]) == ["", "", ""]
    assert pieces("aaab", ["aab"]) == ["", "", "a", ""]
    assert pieces("ab", ["abc"]) == ["", "", "ab"]  # nothing follows


def test_of_several_stop_strings_the_first_in_the_text_counts():
    assert "".join(pieces("one two", ["two", "e"])) == "on"
    assert "".join(pieces("xab", ["b", "ab"])) == "".join(pieces("xab", ["ab", "b"])) == "x"
    assert "".join(pieces("x\n\ny", ["\n\n", "\n\ny"])) == "x"


def test_a_stop_string_may_consist_of_split_characters():
    assert "".join(pieces("a€£b", ["€£"])) == "a"


def test_a_stop_string_is_also_found_in_what_is_held_to_the_end():
    stream = TextStream(TOKENIZER, ["\ufffd"])
    assert stream.add(0xE2) == "" and stream.finish() == "" and stream.stopped


@settings(max_examples=150, deadline=None)
@given(
    st.text("ab€\n", max_size=12), st.lists(st.text("ab€\n", min_size=1, max_size=4), max_size=3)
)
def test_the_pieces_are_the_text_before_the_stop_string_that_is_complete_first(text, stop):
    ends = [text.find(s) + len(s) for s in stop if s in text]
    seen = text[: min(ends)] if ends else text
    expected = seen[: min(seen.find(s) for s in stop if s in seen)] if ends else text
    assert "".join(pieces(text, stop)) == expected


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=20))
def test_the_pieces_are_the_decoded_text(data):
    assert "".join(pieces(data)) == TOKENIZER.decode(list(data), skip_special_tokens=True)


@pytest.mark.parametrize("text", ["Hello, wörld! 你好 🙂🙃", "  two  spaces\n\ttabs"])
def test_the_pieces_of_smollm2_are_the_decoded_text(text, smollm2):
    tokenizer = smollm2[1]
    stream = TextStream(tokenizer)
    found = [stream.add(token) for token in tokenizer(text).input_ids]
    assert "".join([*found, stream.finish()]) == text
