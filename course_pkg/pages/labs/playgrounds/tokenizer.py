"""The metrics' tokenizers: one text, cut in several ways."""

from course_pkg.metrics.tokenizers import tokenize
from course_pkg.pages.labs.playgrounds.markup import chip, joined, table
from course_pkg.pages.labs.playgrounds.playground import Field, Playground

TOKENIZERS = ("13a", "whitespace", "zh", "char", "rouge", "unicode")


def view(text: str) -> str:
    """The tokens that each tokenizer makes of the text."""
    rows = []
    for name in TOKENIZERS:
        tokens = tokenize(text, name)
        rows.append((name, len(tokens), joined((chip(token, "none") for token in tokens), " ")))
    return table(("tokenizer", "tokens", ""), rows)


PLAYGROUND = Playground(
    "tokenizer",
    "One text, six tokenizers",
    (Field("text", "Text", "text", "It rained 3.5 cm, didn't it? 下雨了。", most=120),),
    view,
)
