"""The parser and the automaton against Python's re."""

import random
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings

from course_pkg.serving.constrained import automaton as automaton_module
from course_pkg.serving.constrained.automaton import ConstraintError, build_automaton
from course_pkg.serving.constrained.characters import ANY, complement, union, utf8
from course_pkg.serving.constrained.expression import intersect, matches
from course_pkg.serving.constrained.regex import RegexError, parse, search
from tests.serving.constrained.regexes import PATTERNS, accepts, texts
from tests.tables import each_row


def build_or_none(expression):
    try:
        return build_automaton(expression)
    except ConstraintError:
        return None


@given(PATTERNS)
@settings(max_examples=80)
@example("(?:(?:a?){2}){2,}")
@example("(?:a|(?:ab)*){1,3}é")
def test_the_automaton_accepts_exactly_what_fullmatch_accepts(pattern):
    automaton = build_or_none(parse(pattern))
    reference = re.compile(pattern, re.ASCII)
    for text in texts(4):
        ours = automaton is not None and accepts(automaton, text)
        assert ours == bool(reference.fullmatch(text)), text


@given(PATTERNS)
@settings(max_examples=30)
def test_derivatives_alone_accept_what_fullmatch_accepts(pattern):
    expression = parse(pattern)
    reference = re.compile(pattern, re.ASCII)
    for text in texts(3):
        assert matches(expression, text.encode()) == bool(reference.fullmatch(text)), text


@each_row("pattern", ["a", "^a", "a$", "^a$", "^a|b$", "a|^b|^é$", "^$", "", "(a|b)é"])
def test_search_finds_what_re_search_finds(pattern):
    automaton = build_automaton(search(pattern))
    for text in texts(4):
        assert accepts(automaton, text) == bool(re.search(pattern, text)), text


@given(PATTERNS, PATTERNS)
@settings(max_examples=40)
def test_an_intersection_is_what_both_match(one, other):
    automaton = build_or_none(intersect(parse(one), parse(other)))
    both = [re.compile(pattern, re.ASCII) for pattern in (one, other)]
    for text in texts(3):
        ours = automaton is not None and accepts(automaton, text)
        assert ours == all(pattern.fullmatch(text) for pattern in both), text


@given(PATTERNS)
@settings(max_examples=40)
def test_no_two_states_are_equal_and_every_state_leads_to_the_end(pattern):
    automaton = build_or_none(parse(pattern))
    if automaton is None:
        return
    # Pairs that a string of bytes tells apart, by the definition: until nothing changes.
    size = len(automaton.accepting)
    table = np.vstack([automaton.transitions, np.full((1, 256), size)])
    table[table < 0] = size
    accepting = np.append(automaton.accepting, False)
    differ = accepting[:, None] != accepting[None, :]
    for _ in range(size + 1):
        differ = differ | differ[table[:, None, :], table[None, :, :]].any(-1)
    assert (differ | np.eye(size + 1, dtype=bool)).all()


def test_automata_have_the_textbook_number_of_states():
    for pattern, states in {"(a|b)*abb": 4, "(a|b)*a(a|b){8}": 512, "ab|cd": 4, "a{3}": 4}.items():
        assert len(build_automaton(parse(pattern)).accepting) == states


def test_utf8_ranges_hold_at_every_border_and_any_character_is_what_utf8_decodes():
    borders = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
    near = {code + step for code in borders for step in (-1, 0, 1)}
    codes = [c for c in sorted(near) if 0 <= c <= 0x10FFFF and not 0xD800 <= c <= 0xDFFF]
    random_pairs = random.Random(0)
    for _ in range(60):
        low, high = sorted(random_pairs.sample(codes, 2))
        written = utf8(union([(low, high)]))
        for code in codes:
            assert matches(written, chr(code).encode()) == (low <= code <= high)
    automaton = build_automaton(utf8(ANY))
    random_bytes = random.Random(1)
    for _ in range(3000):
        data = bytes([random_bytes.randrange(0x70, 256)])
        data += bytes(random_bytes.randrange(0x80, 0xC0) for _ in range(random_bytes.randrange(4)))
        state = automaton.run(data)
        try:
            is_character = len(data.decode()) == 1
        except UnicodeDecodeError:
            is_character = False
        assert (state >= 0 and bool(automaton.accepting[state])) == is_character, data
    assert complement(ANY) == ()


@each_row(
    ("pattern", "named", "position"),
    [
        ("ab(?=c)", "a lookahead, (?=,", 2),
        ("(?<!a)b", "a lookbehind, (?<!,", 0),
        ("(?P<x>a)", "a named group", 0),
        ("(?i)a", "flags", 0),
        (r"(a)\1", r"the escape \1", 3),
        (r"\bword", r"the escape \b", 0),
        (r"a\p{L}", r"the escape \p", 1),
        ("^a", "the anchor ^", 0),
        ("a$", "the anchor $", 1),
        ("a*?", "*?", 1),
        ("a{2}{3}", "{2}{", 1),
        ("a++", "++", 1),
        ("*a", "* repeats nothing", 0),
        ("a|+", "+ repeats nothing", 2),
        ("a{x}", "{", 1),
        ("a{3,2}", "larger number first", 1),
        ("(ab", "no ) for this (", 0),
        ("ab)", "no ( for this )", 2),
        ("x[ab", "no ] for this [", 1),
        ("[]a]", r"write \]", 0),
        ("[z-a]", "does not go up", 2),
        (r"[a-\d]", "does not go up", 2),
        ("a\\", "the escape \\", 1),
        (r"\xg1", r"\x needs 2", 0),
        (r"\U00110000", r"\U needs 8", 0),
        (r"\ud800", "surrogate", 0),
        ("(" * 200, "inside each other", 100),
    ],
)
def test_what_is_not_supported_is_named_with_its_position(pattern, named, position):
    with pytest.raises(RegexError) as caught:
        parse(pattern)
    assert caught.value.position == position
    assert named in str(caught.value) and f"position {position} " in str(caught.value)


def test_anchors_around_a_constraint_change_nothing_where_they_are_allowed():
    for pattern, plain in (("^ab$", "ab"), ("^a|b$|^c$", "a|b|c"), ("^$", "")):
        assert parse(pattern, anchors=True) is parse(plain)


def test_anchors_in_the_middle_of_a_search_and_patterns_that_are_no_strings_are_refused():
    for pattern in ("a(^b)", "a^b", "a$b"):
        for read in (search, partial(parse, anchors=True)):
            with pytest.raises(RegexError, match="anchor"):
                read(pattern)
    with pytest.raises(TypeError, match="regular expression must be a string"):
        parse(b"a")


def test_too_much_work_too_many_states_and_contradictions_are_errors_that_say_so(monkeypatch):
    monkeypatch.setattr(automaton_module, "MOST_WORK", 20_000)
    with pytest.raises(ConstraintError, match="too much work"):
        build_automaton(parse("(a|aa){1,3000}"))  # a state has up to 1500 parts
    monkeypatch.setattr(automaton_module, "MOST_STATES", 500)
    with pytest.raises(ConstraintError, match="more than 500 states"):
        build_automaton(parse("(a|b)*a(a|b){20}"))
    with pytest.raises(ConstraintError, match="no text satisfies"):
        build_automaton(intersect(parse("a+"), parse("b+")))
