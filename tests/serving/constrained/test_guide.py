"""Masks by brute force: each generated text matches, each matching text is reachable."""

import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.serving.constrained.automaton import ConstraintError, build_automaton
from course_pkg.serving.constrained.guide import FINISHED, Guide, regex_guide
from course_pkg.serving.constrained.regex import parse
from course_pkg.serving.constrained.vocabulary import Vocabulary
from tests.serving.constrained.regexes import PATTERNS, texts

LONGEST = 4  # characters
BYTES = "é".encode()
TOKENS = [b"a", b"b", b"aa", b"ab", b"ba", b"bab", "é".encode(), "aé".encode()]
TOKENS += [BYTES[:1], BYTES[1:], b"b" + BYTES[:1], BYTES[1:] + b"a"]
VOCABULARIES = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=6).map(
    # One special token, one without bytes, and the end token.
    lambda tokens: Vocabulary([*tokens, None, b"", b"</s>"], eos=[len(tokens) + 2])
)


def guide_or_none(pattern, vocabulary):
    try:
        return regex_guide(pattern, vocabulary)
    except ConstraintError:
        return None


def generated(guide, longest):
    """All texts of at most so many bytes that the masks let a model write."""
    words = set()
    todo = [(guide.start, b"")] if guide is not None else []
    while todo:
        state, written = todo.pop()
        for token in guide.allowed(state):
            if token in guide.vocabulary.eos:
                words.add(written)
                continue
            longer = written + guide.vocabulary.tokens[token]
            if len(longer) <= longest:
                todo.append((guide.advance(state, token), longer))
    return words


def spellable(vocabulary):
    """A function: whether tokens of the vocabulary write these bytes."""

    @cache
    def spelled(data):
        usable = [token for token in vocabulary.tokens[:-1] if token]
        return not data or any(data.startswith(t) and spelled(data[len(t) :]) for t in usable)

    return spelled


@given(PATTERNS, VOCABULARIES)
@settings(max_examples=60)
def test_the_masks_write_exactly_the_matching_texts_that_tokens_can_write(pattern, vocabulary):
    guide = guide_or_none(pattern, vocabulary)
    spelled = spellable(vocabulary)
    matching = {t.encode() for t in texts(LONGEST) if re.fullmatch(pattern, t, re.ASCII)}
    reachable = {data for data in matching if spelled(data)}
    written = generated(guide, LONGEST)
    assert written <= matching
    assert {data for data in reachable if len(data) <= LONGEST} <= written


@given(PATTERNS.filter(lambda p: not re.search(r"[*+]|,\}|\.|\[\^|\\W|a-é|\\w", p)), VOCABULARIES)
@settings(max_examples=60)
def test_a_token_is_allowed_if_and_only_if_tokens_can_finish_a_text_after_it(pattern, vocabulary):
    # Without unbounded quantifiers, all texts are known, if they aren't too long.
    guide = guide_or_none(pattern, vocabulary)
    every = {t.encode() for t in texts(6) if re.fullmatch(pattern, t, re.ASCII)}
    if any(len(data.decode()) == 6 for data in every):
        return
    spelled = spellable(vocabulary)
    assert (guide is None) == (not any(map(spelled, every)))
    todo = [(guide.start, b"")] if guide is not None else []
    while todo:
        state, written = todo.pop()
        allowed = set(guide.allowed(state))
        for token, data in enumerate(vocabulary.tokens):
            if token in vocabulary.eos:
                expected = written in every
            else:
                longer = written + (data or b"")
                rests = (text[len(longer) :] for text in every if text.startswith(longer))
                expected = bool(data) and any(map(spelled, rests))
            assert (token in allowed) == expected, (written, data)
            if expected and token not in vocabulary.eos:
                todo.append((guide.advance(state, token), longer))


@given(PATTERNS, VOCABULARIES)
@settings(max_examples=40)
def test_every_state_can_finish_and_forced_tokens_are_all_that_can_follow(pattern, vocabulary):
    guide = guide_or_none(pattern, vocabulary)
    for state in guide.states if guide is not None else ():
        assert guide.allowed(state)
        forced = guide.forced(state)
        written = b"".join(vocabulary.tokens[t] for t in forced if t not in vocabulary.eos)
        assert len(forced) <= 1 or written
        # Whatever else a model may write has the same bytes in the beginning.
        paths = [(state, b"")]
        for _ in range(3):
            paths = [
                (guide.advance(at, token), data + (vocabulary.tokens[token] or b""))
                for at, data in paths[:50]
                if at != FINISHED
                for token in guide.allowed(at)
                if token not in vocabulary.eos
            ]
            for _, data in paths:
                assert data.startswith(written) or written.startswith(data)


TINY = Vocabulary([b"ab", b"c", b"</s>"], eos=[2])


def test_smollm2s_missing_bytes_make_some_characters_impossible():
    # Like SmolLM2, a vocabulary without the byte F1: no character from U+40000 to U+7FFFF.
    tokens = [None if byte == 0xF1 else bytes([byte]) for byte in range(256)]
    vocabulary = Vocabulary([*tokens, b"</s>"], eos=[256])
    guide = regex_guide("[\U00030000-\U00050000]", vocabulary)
    assert guide.allowed(guide.start) == [0xF0]
    with pytest.raises(ConstraintError, match="no sequence of tokens"):
        regex_guide("\U00050000", vocabulary)


def test_the_end_is_allowed_in_accepting_states_only_and_never_forced_beside_other_tokens():
    vocabulary = Vocabulary([b"1", b"2", b"</s>"], eos=[2])
    guide = regex_guide("[12]{1,2}", vocabulary)
    after_one = guide.advance(guide.start, 0)
    after_two = guide.advance(after_one, 1)
    allowed = [guide.allowed(state) for state in (guide.start, after_one, after_two, FINISHED)]
    assert allowed == [[0, 1], [0, 1, 2], [2], [2]]
    assert [guide.forced(state) for state in (guide.start, after_one, after_two)] == [[], [], [2]]


def test_all_end_tokens_are_allowed_and_the_empty_text_can_be_the_only_one():
    vocabulary = Vocabulary([b"a", b"a", b"</s>"], eos=[1, 2])
    guide = regex_guide("a+", vocabulary)
    assert guide.allowed(guide.start) == [0]
    assert guide.allowed(guide.advance(guide.start, 0)) == [0, 1, 2]
    guide = regex_guide("", TINY)
    assert guide.allowed(guide.start) == [2] and guide.forced(guide.start) == [2]


def test_tokens_that_are_not_allowed_and_unknown_states_are_errors():
    guide = regex_guide("ab", TINY)
    for token in (1, 2, 3, -1):
        with pytest.raises(ValueError, match=f"token {token} .* is not allowed in state 0"):
            guide.advance(guide.start, token)
    guide = regex_guide("ab|cd", TINY)
    unusable = guide.automaton.run(b"c")
    for state in (unusable, 99, -5):
        with pytest.raises(ValueError, match="is not a state of this guide"):
            guide.mask(state)


@given(PATTERNS)
@settings(max_examples=30)
def test_states_are_numbered_as_they_are_first_reached_byte_by_byte(pattern):
    """So they have the same numbers in each process, whatever the order of Python's sets."""
    transitions = build_automaton(parse(pattern)).transitions
    reached = dict.fromkeys([0, *transitions.ravel().tolist()])
    assert [state for state in reached if state >= 0] == list(range(len(transitions)))


def test_a_guide_is_made_of_an_automaton_and_a_vocabulary_and_compiled_once():
    assert regex_guide("(ab)+", TINY) is regex_guide("(ab)+", TINY)
    assert regex_guide("(ab)+", TINY) is not regex_guide("(ab)+", Vocabulary(TINY.tokens, eos=[2]))
    guide = Guide(regex_guide("ab", TINY).automaton, TINY)
    assert guide.forced(guide.start) == [0, 2]


def test_forced_text_is_divided_as_by_the_tokenizer_and_leaves_open_what_could_become_longer():
    words = [b"na", b"name", b'"', b'":', b'": ', b" ", b":", b"x", b"</s>"]
    vocabulary = Vocabulary(words, eos=[8])
    guide = regex_guide('"name":( x|x)', vocabulary)
    # `":` is left to the model: `": ` begins with it. Everything before is forced.
    assert [words[token] for token in guide.forced(guide.start)] == [b'"', b"name"]
    guide = regex_guide('"name":x', vocabulary)
    assert [words[t] for t in guide.forced(guide.start)] == [b'"', b"name", b'":', b"x", b"</s>"]

    def encode(text):
        return [0, 1] if text == "ab" else []

    vocabulary = Vocabulary([b"a", b"b", b"ab", b"</s>"], eos=[3], encode=encode)
    assert regex_guide("ab", vocabulary).forced(0) == [0, 1, 3]
    assert regex_guide("aab", vocabulary).forced(0) == [0, 2, 3]  # `encode` doesn't write it
