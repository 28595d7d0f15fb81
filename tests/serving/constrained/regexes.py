"""Random regular expressions and tiny vocabularies, for property tests; a schema of a person."""

from itertools import product

from hypothesis import strategies as st

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,7}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
}
ALPHABET = "abé"  # é has two bytes
ATOMS = st.sampled_from(["a", "b", "é", ".", "[ab]", "[^a]", "[a-é]", r"\w", r"\x61", "", r"[\Wb]"])


def _combined(inner):
    pairs = st.tuples(inner, inner)
    quantifiers = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}", "{0}"])
    return st.one_of(
        pairs.map("".join),
        pairs.map("|".join),
        inner.map("({})".format),
        st.tuples(inner, quantifiers).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


PATTERNS = st.recursive(ATOMS, _combined, max_leaves=6)


def accepts(automaton, text):
    state = automaton.run(text.encode())
    return state >= 0 and bool(automaton.accepting[state])


def texts(longest):
    """All texts of at most so many characters of the alphabet."""
    for size in range(longest + 1):
        for characters in product(ALPHABET, repeat=size):
            yield "".join(characters)
