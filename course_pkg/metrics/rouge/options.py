"""The options that all kinds of ROUGE share, and the tokens that they make of a text.

Sources: the tokenization of ROUGE-1.5.5 and rouge-score; Porter 1980.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from course_pkg.common.arguments import require_choice, require_number, require_string
from course_pkg.metrics.rouge import perl
from course_pkg.metrics.tokenizers import porter_stem, tokenizer
from course_pkg.metrics.wordnet import irregular_forms

MODES = ("paper", perl.MODE)
MULTI = ("best", "pooled", "average")
Stem = bool | Mapping[str, str]


@dataclass(frozen=True)
class RougeOptions:
    """The options that all kinds of ROUGE share.

    Attributes:
        beta: F weighs recall beta² times as much as precision.
        multi: how several references are combined. "best" takes the reference with the highest F,
            the first of several; "pooled" adds up matches and totals over the references, then
            divides; "average" takes the means of P, R and F. None: "best", or "pooled" in mode
            "rouge155".
        stem: True stems words of more than 3 letters by Porter's rules; a mapping contains
            irregular forms that are looked up first ({"mice": "mouse"}).
        tokenize: a tokenizer's name, see `tokenizers.tokenize`.
        mode: "paper", which equals rouge-score for the metrics that it has; or "rouge155", Lin's
            Perl script, which differs from the paper: see `rouge.perl`.
    """

    beta: float = 1.0
    multi: str | None = None
    stem: Stem = False
    tokenize: str = "rouge"
    mode: str = "paper"

    def __post_init__(self) -> None:
        require_beta(self.beta)
        require_choice(self.mode, "mode", MODES)
        if self.multi is None:
            object.__setattr__(self, "multi", "pooled" if self.perl else "best")
        require_choice(self.multi, "multi", MULTI)

    @property
    def perl(self) -> bool:
        """Whether to follow the Perl script where it differs from the paper."""
        return self.mode == perl.MODE


def require_beta(beta: float) -> float:
    """The value if it is a number of at least 0; otherwise raise TypeError or ValueError."""
    if not require_number(beta, "beta") >= 0:
        raise ValueError(f"beta must be at least 0, got {beta}; 1 weighs P and R equally")
    return float(beta)


def rouge_tokens(
    text: str, tokenize: str = "rouge", stem: Stem = False, mode: str = "paper"
) -> list[str]:
    """Split a text into the tokens that ROUGE counts; arguments as for `RougeOptions`."""
    return text_splitter(RougeOptions(stem=stem, tokenize=tokenize, mode=mode))[0](text)


def text_splitter(options: RougeOptions) -> tuple[Callable[[str], list[str]], str]:
    """The function that splits a text into tokens, and a description of its stemming."""
    split = tokenizer(options.tokenize)
    irregular, stemming = _irregular_forms(options)

    def stem(token: str) -> str:
        if options.perl:
            return perl.stem(token, irregular)
        return porter_stem(irregular.get(token, token).lower())

    def tokens(text: str) -> list[str]:
        fix = 'if you already have tokens, join them with spaces and pass tokenize="whitespace"'
        words = split(require_string(text, fix=fix))
        if options.tokenize == "rouge" and not words and any(map(str.isalpha, text)):
            warnings.warn(
                f"no token is left of {text:.40}…: the tokenizer keeps only a-z and 0-9, as in "
                'rouge-score, so the score is 0; for other scripts use tokenize="unicode"',
                stacklevel=3,
            )
        if irregular is None:
            return words
        return [stem(token) if len(token) > 3 else token for token in words]

    return tokens, stemming


def _irregular_forms(options: RougeOptions) -> tuple[Mapping[str, str] | None, str]:
    """The forms to look up before Porter's rules (None: no stemming), and a report."""
    if isinstance(options.stem, Mapping):
        return options.stem, "given forms, then Porter" if options.stem else "Porter"
    if not options.stem:
        return None, "none"
    if not options.perl:
        return {}, "Porter"
    forms = irregular_forms()
    if forms is None:
        warnings.warn(
            "WordNet is not installed, so irregular forms (feet, better) are not looked up, and "
            "scores differ from the Perl tool's: install the system package wordnet-base or NLTK's "
            "data, pass your own table as stem, or stem={} to stem by Porter's rules alone",
            stacklevel=4,
        )
        return {}, "Porter; WordNet not found"
    return forms, "WordNet's irregular forms, then Porter"


def sentences(text: str) -> list[str]:
    """Split a summary into sentences, one per line; empty lines are dropped."""
    return [line for line in require_string(text).split("\n") if line]
