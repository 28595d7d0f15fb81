"""From a regular expression or a JSON Schema to a guide, compiled once.

Chapter: evaluation/constrained-output.
"""

import json
from functools import lru_cache

from course_pkg.constrained.automaton import build_automaton
from course_pkg.constrained.guide import Guide
from course_pkg.constrained.json_schema import schema_expression
from course_pkg.constrained.regex import parse
from course_pkg.constrained.vocabulary import Vocabulary

MOST_KEPT = 32  # guides; one takes 6 KB a state for SmolLM2


@lru_cache(maxsize=MOST_KEPT)
def regex_guide(pattern: str, vocabulary: Vocabulary) -> Guide:
    """The guide of texts that match the whole regular expression.

    Raises RegexError for what `regex` does not support, ConstraintError if no text matches, if the
    vocabulary can't write one, or if the automaton is too large.

    >>> vocabulary = Vocabulary([b"ab", b"c", b"</s>"], eos=[2])
    >>> guide = regex_guide("(ab){2}", vocabulary)
    >>> guide.forced(guide.start)
    [0, 0, 2]
    """
    return Guide(build_automaton(parse(pattern)), vocabulary)


def json_schema_guide(
    schema: dict | bool, vocabulary: Vocabulary, *, max_whitespace: int = 1, max_depth: int = 3
) -> Guide:
    """The guide of JSON texts that satisfy a schema: see `json_schema.schema_expression`.

    Raises SchemaError for what is not supported, and what `regex_guide` raises.

    >>> vocabulary = Vocabulary([b"true", b"false", b"</s>"], eos=[2])
    >>> guide = json_schema_guide({"type": "boolean"}, vocabulary)
    >>> guide.allowed(guide.start)
    [0, 1]
    """
    # Equal schemas have the same text; the order of properties counts.
    return _schema_guide(json.dumps(schema), vocabulary, max_whitespace, max_depth)


@lru_cache(maxsize=MOST_KEPT)
def _schema_guide(text: str, vocabulary: Vocabulary, max_whitespace: int, max_depth: int) -> Guide:
    expression = schema_expression(
        json.loads(text), max_whitespace=max_whitespace, max_depth=max_depth
    )
    return Guide(build_automaton(expression), vocabulary)
