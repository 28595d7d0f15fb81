"""The tokens and sentences of a text, as ROUGE counts them: tokenized, and stemmed on request.

Tokenizers are in `metrics.tokenizers`; stemming is for English only.

Sources: the tokenization of ROUGE-1.5.5 and rouge-score; Porter 1980, "An algorithm for suffix
stripping". Chapter: metrics/rouge.
"""

import warnings
from collections.abc import Mapping

from course_pkg.metrics.arguments import require_string
from course_pkg.metrics.rouge import perl
from course_pkg.metrics.tokenizers import Tokenizer, porter_stem, tokenizer

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
    forms that are looked up first ({"mice": "mouse"}), as the Perl tool does with WordNet's.
    mode: "rouge155" stems as the Perl tool does, see `perl.stem`.
    Warns if "rouge" finds no token in a text that has letters.
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
    irregular = stem if isinstance(stem, Mapping) else {}
    if mode == perl.MODE:
        return [perl.stem(token, irregular) if len(token) > 3 else token for token in tokens]
    return [
        porter_stem(irregular.get(token, token).lower()) if len(token) > 3 else token
        for token in tokens
    ]


def sentences(text: str) -> list[str]:
    """Split a summary into sentences, one per line; empty lines are dropped.

    Raises TypeError unless text is a string.
    Source: rouge-score 0.1.2, and ROUGE-1.5.5's format SPL.

    >>> sentences("The cat sat.\\n\\nThe dog ran.")
    ['The cat sat.', 'The dog ran.']
    """
    return [line for line in require_string(text).split("\n") if line]
