"""Which parts of test items are also in the training texts: shared n-grams of words.

It finds copies, no paraphrase or translation. Sources: Brown et al. 2020 (GPT-3), appendix C;
Touvron et al. 2023 (Llama 2), appendix A.6.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from course_pkg.common.arguments import require_bool, require_integer, require_string, text_list
from course_pkg.metrics.ngrams import Ngram, ngrams

_SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # Japanese syllables, Chinese characters
_LETTERS = rf"[^\W_{_SINGLE}]+"
_WORD = re.compile(rf"[{_SINGLE}]|{_LETTERS}(?:['’]{_LETTERS})*")
_RAW = re.compile(r"[^ ]+")


@dataclass(frozen=True)
class Word:
    """A word as it is compared, and where it stands: text[start:end]."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class SharedSpan:
    """item[start:end], `words` long, is also in the training text with this number."""

    start: int
    end: int
    words: int
    document: int


@dataclass(frozen=True)
class ItemOverlap:
    """What one item shares with the training texts.

    Attributes:
        words: how many the item has.
        covered: how many of them are in a shared n-gram.
        spans: the longest stretches of neighboring matches in one text; they may overlap.
    """

    n: int
    words: int
    covered: int
    spans: tuple[SharedSpan, ...]

    @property
    def share(self) -> float:
        """The share of the item's words that are in a shared n-gram, in [0, 1]."""
        return self.covered / self.words if self.words else 0.0

    @property
    def checked(self) -> bool:
        """Whether the item has at least n words; a shorter one can't match."""
        return self.words >= self.n

    @property
    def longest(self) -> int:
        """The words of the longest span."""
        return max((span.words for span in self.spans), default=0)


def normalized_words(text: str) -> list[Word]:
    """The words of a text as they are compared: without width, case and punctuation (NFKC).

    >>> [word.text for word in normalized_words("“Isn’t\\n  it 3 PM?” (水)")]
    ["isn't", 'it', '3', 'pm', '水']
    """
    return [Word(_plain(match[0]), match.start(), match.end()) for match in _WORD.finditer(text)]


def find_overlaps(
    items: Sequence[str], training: Iterable[str], n: int = 13, *, normalized: bool = True
) -> list[ItemOverlap]:
    """For each item, the n-grams of words that it shares with any of the training texts.

    Args:
        training: read once, one text at a time, so it may be a generator over files.
        normalized: False compares what stands between single spaces, as it is.

    >>> [overlap] = find_overlaps(["Who sat on the mat?"], ["The cat\\nsat on the mat."], n=3)
    >>> overlap.share, overlap.spans
    (0.8, (SharedSpan(start=4, end=18, words=4, document=0),))
    """
    require_integer(n, "n")
    require_bool(normalized, "normalized")
    split = normalized_words if normalized else _between_spaces
    words = [split(text) for text in text_list(items, "item")]
    index = [ngrams([word.text for word in item_words], n) for item_words in words]
    first: dict[Ngram, int | None] = {ngram: None for grams in index for ngram in grams}
    for document, text in enumerate(training):
        seen = split(require_string(text, f"training text {document}"))
        for ngram in first.keys() & set(ngrams([word.text for word in seen], n)):
            if first[ngram] is None:
                first[ngram] = document
    return [_overlap(own, grams, first, n) for own, grams in zip(words, index, strict=True)]


def _overlap(
    words: Sequence[Word], index: Sequence[Ngram], first: Mapping[Ngram, int | None], n: int
) -> ItemOverlap:
    matched = {
        position: document
        for position, ngram in enumerate(index)
        if (document := first[ngram]) is not None
    }
    covered = {position for start in matched for position in range(start, start + n)}
    runs: list[tuple[int, int]] = []  # first and last position of neighbors in one text
    for start in sorted(matched):
        if runs and start == runs[-1][1] + 1 and matched[start] == matched[runs[-1][1]]:
            runs[-1] = (runs[-1][0], start)
        else:
            runs.append((start, start))
    spans = [
        SharedSpan(words[first].start, words[last + n - 1].end, last - first + n, matched[first])
        for first, last in runs
    ]
    return ItemOverlap(n, len(words), len(covered), tuple(spans))


def _between_spaces(text: str) -> list[Word]:
    return [Word(match[0], match.start(), match.end()) for match in _RAW.finditer(text)]


def _plain(word: str) -> str:
    if word.isascii():
        return word.lower()
    return unicodedata.normalize("NFKC", word).casefold().replace("’", "'")
