"""Text for ROUGE: tokenizers that lowercase and drop punctuation, stemming, sentences.

What a token is decides every ROUGE score. Two tools of the field agree on runs of a-z and 0-9
(Lin's Perl script and Google's rouge-score), which leaves nothing of a Chinese text; "unicode"
here keeps every script. Other names are those of ngrams.tokenize. Stemming is English alone.

Sources: ROUGE-1.5.5's and rouge-score's tokenization; Porter 1980, "An algorithm for suffix
stripping". Chapter: metrics/rouge.
"""

import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache

from course_pkg.metrics.ngrams import tokenizer
from course_pkg.metrics.texts import require_string

Tokenizer = Callable[[str], list[str]]
_ASCII_WORDS = re.compile("[a-z0-9]+")
# Written without spaces between words, so each character is a token: ideographs and kana.
_ALONE = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_ALONE += "\U00020000-\U0003ffff"
_PERL_STEP_4 = "ement ance ence able ible ant ism ate iti ous ive ize al er ic ou"


def rouge_tokens(
    text: str,
    tokenize: str | Tokenizer = "rouge",
    stem: bool | Mapping[str, str] = False,
    mode: str = "paper",
) -> list[str]:
    """The tokens of a text as ROUGE counts them.

    tokenize: "rouge" lowercases and keeps runs of a-z and 0-9; "unicode" lowercases and keeps
    runs of letters and digits of every script, ideographs and kana one by one; a name of
    `ngrams.tokenize`; or a function from text to tokens. stem: whether words longer than 3
    letters are cut down by Porter's rules; a mapping holds irregular forms that are looked up
    first ({"mice": "mouse"}), as WordNet's are in the Perl tool. mode: "rouge155" has that tool's
    variant of Porter's step 4, and doesn't stem what it has looked up.
    Warns where "rouge" finds no token in a text with letters.
    Raises TypeError if text is no string, ValueError for an unknown tokenizer.
    Source: ROUGE-1.5.5; rouge-score 0.1.2.

    >>> rouge_tokens("The cats' dinner: running mice!", stem={"mice": "mouse"})
    ['the', 'cat', 'dinner', 'run', 'mous']
    >>> rouge_tokens("ROUGE 对中文也有用。", "unicode")
    ['rouge', '对', '中', '文', '也', '有', '用']
    """
    mend = 'tokens that you have already go in joined by spaces, with tokenize="whitespace"'
    tokens = _tokenizer(tokenize)(require_string(text, mend=mend))
    if tokenize == "rouge" and not tokens and any(map(str.isalpha, text)):
        warnings.warn(
            f"no token is left of {text:.40}…: the tokenizer keeps a-z and 0-9 alone, as "
            'rouge-score does, and the score will be 0; for other scripts take tokenize="unicode"',
            stacklevel=3,
        )
    if stem is False or stem is None:
        return tokens
    irregular = stem if isinstance(stem, Mapping) else {}
    cut, perl = _stemmer(mode), mode == "rouge155"

    def stemmed(token: str) -> str:
        if len(token) <= 3:
            return token
        if perl and token in irregular:
            return irregular[token]
        return cut(irregular.get(token, token))

    return [stemmed(token) for token in tokens]


def sentences(text: str) -> list[str]:
    """The sentences of a summary, one per line; empty lines are dropped.

    Raises TypeError if text is no string.
    Source: rouge-score 0.1.2, and ROUGE-1.5.5's format SPL.

    >>> sentences("The cat sat.\\n\\nThe dog ran.")
    ['The cat sat.', 'The dog ran.']
    """
    return [line for line in require_string(text).split("\n") if line]


def _tokenizer(tokenize: str | Tokenizer) -> Tokenizer:
    if callable(tokenize):
        return tokenize
    if tokenize == "rouge":
        return lambda text: _ASCII_WORDS.findall(text.lower())
    if tokenize == "unicode":
        return lambda text: _unicode_words().findall(text.lower())
    try:
        return tokenizer(tokenize)
    except ValueError as error:
        raise ValueError(f"{error}; and for ROUGE: rouge, unicode") from None


@lru_cache(maxsize=1)
def _unicode_words() -> re.Pattern[str]:
    """An ideograph or kana; or letters and digits, with the marks that some scripts set on them."""
    marks = "".join(c for c in map(chr, range(0x20000)) if unicodedata.category(c)[0] == "M")
    letter = rf"(?:(?![{_ALONE}])[^\W_])"
    return re.compile(rf"[{_ALONE}]|{letter}(?:{letter}|[{marks}])*")


@lru_cache(maxsize=2)
def _stemmer(mode: str) -> Callable[[str], str]:
    from nltk.stem.porter import PorterStemmer  # here: importing nltk takes long

    if mode != "rouge155":
        return lru_cache(maxsize=2**16)(PorterStemmer().stem)

    class PerlStemmer(PorterStemmer):
        """Porter's rules as ROUGE-1.5.5 has them: -ment and -ent may go after another suffix."""

        def _step4(self, word: str) -> str:
            def drop(word: str, suffix: str) -> str:
                stem = word[: len(word) - len(suffix)]
                return stem if self._measure(stem) > 1 else word

            for suffix in _PERL_STEP_4.split():
                if word.endswith(suffix):
                    word = drop(word, suffix)
                    break
            if word.endswith("ment"):
                word = drop(word, "ment")
            if word.endswith("ent"):
                word = drop(word, "ent")
            elif word.endswith(("sion", "tion")):
                word = drop(word, "ion")
            return word

    return lru_cache(maxsize=2**16)(PerlStemmer(PorterStemmer.MARTIN_EXTENSIONS).stem)
