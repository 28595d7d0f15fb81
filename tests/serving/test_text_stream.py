"""Text from tokens: characters over several tokens, stop strings over several tokens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.lm.tiny import EOS, tiny_tokenizer
from course_pkg.serving.text_stream import TextStream
from tests.tables import each_row

TOKENIZER = tiny_tokenizer()


def pieces(data, stop=()):
    """What each byte adds, and what comes at the end."""
    stream = TextStream(TOKENIZER, stop)
    parts = []
    for byte in data if isinstance(data, bytes) else data.encode():
        parts.append(stream.add(byte))
        if stream.stopped:
            return parts
    return [*parts, stream.finish()]


@each_row(
    ("data", "stop", "parts"),
    [
        ("a€b", [], ["a", "", "", "€", "b", ""]),  # a character appears with its last byte
        ("a€".encode()[:-1], [], ["a", "", "", "\ufffd"]),  # or incomplete at the end
        (b"\xff\xfea", [], ["", "", "\ufffd\ufffda", ""]),  # or with the next one
        ("abxaby", ["aby"], ["", "", "abx", "", "", ""]),  # what may begin a stop string waits
        ("aab", ["aab"], ["", "", ""]),
        ("aaab", ["aab"], ["", "", "a", ""]),
        ("ab", ["abc"], ["", "", "ab"]),  # nothing follows
        ("a€£b", ["€£"], ["a", "", "", "", "", ""]),  # a stop string of split characters
        (b"\xe2", ["\ufffd"], ["", ""]),  # it is also found in what is held to the end
    ],
)
def test_text_appears_as_soon_as_it_is_certain(data, stop, parts):
    assert pieces(data, stop) == parts


@each_row(
    ("tokens", "stop", "text"),
    [
        ([65, 258, 66], [], "AB"),
        ([65, 258, 66], [EOS], "A"),
        ([65, 258, 66], ["A<|im_end|>"], ""),
        ([65, 258, 66, 67], ["<|im_end|>BC"], "A"),
        ([65, 257, 258, 66], ["<|im_start|><|im_end|>"], "A"),
        ([65, 257, 66, 258], ["<|im_start|><|im_end|>"], "AB"),
        ([65, 258, 66, 67], ["AB", "C<|im_end|>"], ""),  # AB is the text without special tokens
        ([65, *[257] * 300, 66], ["AB", "<|im_end|>"], ""),
        ([65, 0xE2, 258, 66], [EOS], "A\ufffd"),
    ],
)
def test_a_stop_string_may_contain_special_tokens(tokens, stop, text):
    stream = TextStream(TOKENIZER, stop)
    seen = ""
    for token in tokens:
        if not stream.stopped:
            seen += stream.add(token)
        assert len(stream._held) < 40
    assert seen + stream.finish() == text


class Counting:
    def __init__(self):
        self.decoded = 0

    def __getattr__(self, name):
        return getattr(TOKENIZER, name)

    def decode(self, tokens, **options):
        self.decoded += len(tokens)
        return TOKENIZER.decode(tokens, **options)


@each_row("data", [b"\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xef\xbf\xbd", b"a"])
def test_bytes_that_never_form_a_character_come_early_and_in_linear_time(data):
    tokenizer = Counting()
    data = list(data) * (2000 // len(data))
    stream = TextStream(tokenizer)
    text = ""
    behind = 0
    for count, byte in enumerate(data, 1):
        text += stream.add(byte)
        if count % 97 < 12 and count < 500:
            behind = max(behind, len(TOKENIZER.decode(data[:count])) - len(text))
    assert text + stream.finish() == TOKENIZER.decode(data)
    assert behind <= 12 and tokenizer.decoded < 150 * len(data)


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
@given(st.lists(st.sampled_from([*"a€🙂é".encode(), 0x80, 0xFF, 0xED]), max_size=60).map(bytes))
def test_the_pieces_are_the_decoded_text(data):
    assert "".join(pieces(data)) == TOKENIZER.decode(list(data), skip_special_tokens=True)


@each_row("text", ["Hello, wörld! 你好 🙂🙃", "  two  spaces\n\ttabs"])
def test_the_pieces_of_smollm2_are_the_decoded_text(text, smollm2):
    tokenizer = smollm2[1]
    stream = TextStream(tokenizer)
    parts = [stream.add(token) for token in tokenizer(text).input_ids]
    assert "".join([*parts, stream.finish()]) == text
