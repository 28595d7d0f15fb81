r"""A parser of regular expressions, for a stated subset of Python's syntax.

Supported: literals; ``.`` (any character but a newline); classes ``[a-z]``, ``[^a-z]``; groups
``(...)``, ``(?:...)``; alternation ``|``; the quantifiers ``* + ? {m} {m,} {m,n}``; the escapes
``\d \w \s \D \W \S``, which have the ASCII meaning (re.ASCII), ``\n \t \r \f \v``, ``\xHH``,
``\uHHHH``, ``\UHHHHHHHH``, and ``\`` before a sign that is no letter or digit. Everything else is
an error that names it and its position: anchors, lookaround, references, flags, lazy and possessive
quantifiers.

A constraint describes the whole text, as re.fullmatch does. `search` is for JSON Schema, whose
patterns may match anywhere unless ^ and $ hold them.
"""

import re
from collections.abc import Callable

from course_pkg.common.arguments import require_string
from course_pkg.serving.constrained.characters import ANY, Ranges, complement, union, utf8
from course_pkg.serving.constrained.expression import EMPTY, Expression, alternate, concat, repeat

Spelling = Callable[[Ranges], Expression]  # how the text writes one character of a set
DIGITS = ((48, 57),)
WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE = ((9, 13), (32, 32))
NEWLINE = ((10, 10),)
SETS = {"d": DIGITS, "w": WORD, "s": SPACE}
SETS |= {name.upper(): complement(ranges) for name, ranges in SETS.items()}
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
COUNTS = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}", re.ASCII)
DEEPEST = 100
GROUPS = {
    "?=": "a lookahead",
    "?!": "a lookahead",
    "?<=": "a lookbehind",
    "?<!": "a lookbehind",
    "?P": "a named group or reference",
    "?<": "a named group",
    "?": "a group with flags or options",
}


class RegexError(ValueError):
    """A regular expression is malformed, or uses what is not supported, at `position`."""

    def __init__(self, problem: str, pattern: str, position: int):
        super().__init__(f"{problem} at position {position} of the regular expression {pattern!r}")
        self.position = position


def parse(pattern: str, spelling: Spelling = utf8, *, anchors: bool = False) -> Expression:
    """The language of byte strings that the whole pattern matches.

    Args:
        spelling: how a character is written in the text; UTF-8 if left out.
        anchors: allow ^ and $ at the ends of an alternative that is in no group.

    Example:

        >>> from course_pkg.serving.constrained.expression import matches
        >>> matches(parse("[aé]{2}"), "éa".encode())
        True
    """
    return _Parser(pattern, spelling, anchors=anchors).whole()


def search(pattern: str, spelling: Spelling = utf8) -> Expression:
    """The texts in which the pattern matches somewhere, as re.search finds it.

    ^ and $ are allowed at the ends of an alternative that is in no group.
    """
    return _Parser(pattern, spelling, anchors=True, anywhere=True).whole()


class _Parser:
    """Recursive descent: a method for each level of the grammar, `at` is the next character."""

    def __init__(
        self, pattern: str, spelling: Spelling, *, anchors: bool = False, anywhere: bool = False
    ):
        self.pattern = require_string(pattern, "the regular expression")
        self.spelling = spelling
        self.anchors = anchors
        self.anywhere = anywhere
        self.at = 0
        self.depth = 0

    def error(self, problem: str, position: int) -> RegexError:
        return RegexError(problem, self.pattern, position)

    def next(self) -> str:
        """The next character, "" at the end."""
        return self.pattern[self.at : self.at + 1]

    def take(self, what: str) -> bool:
        """Whether the rest begins so; then it is consumed."""
        begins = self.pattern.startswith(what, self.at)
        if begins:
            self.at += len(what)
        return begins

    def whole(self) -> Expression:
        result = self.alternation()
        if self.at < len(self.pattern):
            raise self.error("there is no ( for this )", self.at)
        return result

    def alternation(self) -> Expression:
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        return alternate(*branches)

    def sequence(self) -> Expression:
        anchored = self.anchors and self.depth == 0
        anything = repeat(self.spelling(ANY)) if anchored and self.anywhere else EMPTY
        parts = [EMPTY if anchored and self.take("^") else anything]
        while (character := self.next()) and character not in "|)":
            if (
                anchored
                and character == "$"
                and self.pattern[self.at + 1 : self.at + 2] in ("", "|")
            ):
                self.at += 1
                return concat(*parts)
            parts.append(self.quantified())
        return concat(*parts, anything)

    def quantified(self) -> Expression:
        inner = self.atom()
        start = self.at
        counts = COUNTS.match(self.pattern, self.at)
        if counts:
            self.at = counts.end()
            least = int(counts[1])
            most = least
            if counts[2] is not None:  # {m,} or {m,n}
                most = int(counts[3]) if counts[3] else None
            if most is not None and most < least:
                raise self.error(f"{counts[0]} has its larger number first", start)
        elif self.next() and self.next() in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.next()]
            self.at += 1
        else:
            return inner
        if self.next() and self.next() in "*+?{":
            written = self.pattern[start : self.at + 1]
            raise self.error(f"{written} (lazy, possessive or double) is not supported", start)
        return repeat(inner, least, most)

    def atom(self) -> Expression:
        start = self.at
        character = self.next()
        if character in "*+?{":
            fix = "; write \\{ for the character" if character == "{" else ""
            raise self.error(f"{character} repeats nothing or is malformed{fix}", start)
        if character in "^$":
            fix = "a constraint always describes the whole text; write \\ before the character"
            raise self.error(f"the anchor {character} is not supported ({fix})", start)
        self.at += 1
        if character == "(":
            return self.group(start)
        if character == "[":
            return self.spelling(self.bracket(start))
        if character == ".":
            return self.spelling(complement(NEWLINE))
        if character == "\\":
            return self.spelling(self.escape(start))
        return self.spelling(self.single(character, start))

    def group(self, start: int) -> Expression:
        if not self.take("?:"):
            for sign, name in GROUPS.items():
                if self.pattern.startswith(sign, self.at):
                    raise self.error(f"{name}, ({sign}, is not supported", start)
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"more than {DEEPEST} groups inside each other", start)
        inner = self.alternation()
        self.depth -= 1
        if not self.take(")"):
            raise self.error("there is no ) for this (", start)
        return inner

    def bracket(self, start: int) -> Ranges:
        """The set that a class in brackets stands for; [ is consumed."""
        negated = self.take("^")
        members: list[tuple[int, int]] = []
        while not self.take("]"):
            low = self.member(start)
            first = self.at
            following = self.pattern[self.at : self.at + 2]
            if not following.startswith("-") or following in ("-", "-]"):
                members += low
                continue
            self.at += 1
            high = self.member(start)
            if not _is_single(low) or not _is_single(high) or high[0][0] < low[0][0]:
                raise self.error("this range of a class does not go up from one character", first)
            members.append((low[0][0], high[0][0]))
        if not members:
            raise self.error("this class is empty; write \\] for the character ]", start)
        return complement(union(members)) if negated else union(members)

    def member(self, start: int) -> Ranges:
        """A character of a class, or an escape that stands for several."""
        position = self.at
        if not self.next():
            raise self.error("there is no ] for this [", start)
        self.at += 1
        character = self.pattern[position]
        return self.escape(position) if character == "\\" else self.single(character, position)

    def escape(self, start: int) -> Ranges:
        r"""The set that an escape stands for; \ is consumed."""
        letter = self.next()
        self.at += 1
        if letter in HEX_DIGITS:
            size = HEX_DIGITS[letter]
            digits = self.pattern[self.at : self.at + size]
            self.at += size
            if not re.fullmatch(f"[0-9a-fA-F]{{{size}}}", digits) or int(digits, 16) > 0x10FFFF:
                raise self.error(
                    f"\\{letter} needs {size} hexadecimal digits of a character", start
                )
            return self.single(chr(int(digits, 16)), start)
        if letter in SETS:
            return SETS[letter]
        if letter in CONTROLS:
            return self.single(CONTROLS[letter], start)
        if not letter or (letter.isalnum() and letter.isascii()):
            raise self.error(f"the escape \\{letter} is not supported", start)
        return self.single(letter, start)

    def single(self, character: str, position: int) -> Ranges:
        code = ord(character)
        if not union([(code, code)]):
            raise self.error(f"U+{code:04X} is a surrogate, not a character,", position)
        return ((code, code),)


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
