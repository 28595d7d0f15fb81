"""The tokens and sentences of a text, as ROUGE counts them: tokenized, and stemmed on request.

Tokenizers are in `metrics.tokenizers`; stemming is for English only.

Sources: the tokenization of ROUGE-1.5.5 and rouge-score; Porter 1980, "An algorithm for suffix
stripping". Chapter: metrics/rouge.
"""

import warnings
from collections.abc import Mapping

from course_pkg.arguments import require_string
from course_pkg.metrics.rouge import perl
from course_pkg.metrics.tokenizers import Tokenizer, porter_stem, tokenizer
from course_pkg.metrics.wordnet import irregular_forms

Stem = bool | Mapping[str, str]


def rouge_tokens(
    text: str,
    tokenize: str | Tokenizer = "rouge",
    stem: Stem = False,
    mode: str = "paper",
) -> list[str]:
    """Split a text into the tokens that ROUGE counts.

    tokenize: a tokenizer's name, see `tokenizers.tokenize`, or a function from text to tokens.
    stem: True stems words of more than 3 letters by Porter's rules; a mapping contains irregular
    forms that are looked up first ({"mice": "mouse"}).
    mode: "rouge155" stems as the Perl tool does, see `perl.stem` and `lookup_table`.
    Warns if "rouge" finds no token in a text that has letters, and as `lookup_table` does.
    Raises TypeError unless text is a string, ValueError for an unknown tokenizer.
    Source: ROUGE-1.5.5; rouge-score 0.1.2.

    >>> rouge_tokens("The cats' dinner: running mice!", stem={"mice": "mouse"})
    ['the', 'cat', 'dinner', 'run', 'mous']
    """
    fix = 'if you already have tokens, join them with spaces and pass tokenize="whitespace"'
    split = tokenize if callable(tokenize) else tokenizer(tokenize)
    tokens = split(require_string(text, fix=fix))
    if tokenize == "rouge" and not tokens and any(map(str.isalpha, text)):
        warnings.warn(
            f"no token is left of {text:.40}…: the tokenizer keeps only a-z and 0-9, as in "
            'rouge-score, so the score is 0; for other scripts use tokenize="unicode"',
            stacklevel=3,
        )
    if not stem and not isinstance(stem, Mapping):
        return tokens
    irregular, _ = lookup_table(stem, mode)
    if mode == perl.MODE:
        return [perl.stem(token, irregular) if len(token) > 3 else token for token in tokens]
    return [
        porter_stem(irregular.get(token, token).lower()) if len(token) > 3 else token
        for token in tokens
    ]


def lookup_table(stem: Stem, mode: str) -> tuple[Mapping[str, str], str]:
    """Return the irregular forms that are looked up before Porter's rules, and how to report it.

    stem, mode: as for `rouge_tokens`. With stem=True, mode "rouge155" looks up the forms in this
    machine's WordNet, as the Perl tool does in its copy of WordNet 2.0. If there is none, it warns
    and stems by the rules alone; stem={} does so without a warning.
    Source: ROUGE-1.5.5, MorphStem.

    >>> lookup_table(True, "paper"), lookup_table({"mice": "mouse"}, "rouge155")
    (({}, 'Porter'), ({'mice': 'mouse'}, 'given forms, then Porter'))
    """
    if isinstance(stem, Mapping):
        return stem, "given forms, then Porter" if stem else "Porter"
    if not stem:
        return {}, "none"
    if mode != perl.MODE:
        return {}, "Porter"
    forms = irregular_forms()
    if forms is None:
        warnings.warn(
            "WordNet is not installed, so irregular forms (feet, better) are not looked up, and "
            "scores differ from the Perl tool's: install the system package wordnet-base or NLTK's "
            "data, pass your own table as stem, or stem={} to stem by Porter's rules alone",
            stacklevel=3,
        )
        return {}, "Porter; WordNet not found"
    return forms, "WordNet's irregular forms, then Porter"


def sentences(text: str) -> list[str]:
    """Split a summary into sentences, one per line; empty lines are dropped.

    Raises TypeError unless text is a string.
    Source: rouge-score 0.1.2, and ROUGE-1.5.5's format SPL.

    >>> sentences("The cat sat.\\n\\nThe dog ran.")
    ['The cat sat.', 'The dog ran.']
    """
    return [line for line in require_string(text).split("\n") if line]
