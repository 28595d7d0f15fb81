"""n-grams: cutting a text into tokens, counting runs of n of them, counting what two texts share.

BLEU, ROUGE and METEOR stand on this module. It does not score anything, and its tokenizers follow
the evaluation tools of machine translation: a language model's subword tokenizer is in `lm`.

Sources: Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation",
section 2.1; NIST's mteval-v13a, whose tokenization is "13a"; Post 2018, "A Call for Clarity in
Reporting BLEU Scores", on why the tokenizer is a part of the metric.
Chapter: metrics/bleu.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from course_pkg.metrics.texts import require_string

Ngram = tuple[Hashable, ...]


def ngrams(tokens: Sequence[Hashable], n: int) -> list[Ngram]:
    """All runs of n neighboring tokens, from left to right; none if there are fewer than n.

    tokens: a list or tuple, as `tokenize` gives it. Takes time n * len(tokens).
    Raises TypeError for a text that is not cut into tokens yet, ValueError unless n >= 1.
    Source: Papineni et al. 2002, section 2.1.

    >>> ngrams(["the", "cat", "sat"], 2)
    [('the', 'cat'), ('cat', 'sat')]
    """
    return list(_runs(tokens, n))


def count(tokens: Sequence[Hashable], n: int) -> Counter[Ngram]:
    """How often each n-gram occurs: a Counter from tuples of n tokens to counts.

    Arguments and errors as for `ngrams`.
    Source: Papineni et al. 2002, section 2.1.

    >>> count(["the", "cat", "the", "cat"], 2)
    Counter({('the', 'cat'): 2, ('cat', 'the'): 1})
    """
    return Counter(_runs(tokens, n))


def clipped_matches(hypothesis: Counter, reference: Counter) -> int:
    """The n-grams that two texts share, each counted as often as in the text that has fewer.

    Symmetric. For several references pass `maximum_counts` of theirs.
    Source: Papineni et al. 2002, section 2.1 (Count_clip).

    >>> clipped_matches(count(["the", "the", "the"], 1), count(["the", "cat", "the"], 1))
    2
    """
    shared = hypothesis.keys() & reference.keys()
    return sum([min(hypothesis[ngram], reference[ngram]) for ngram in shared])


def count_matches(tokens: Sequence[Hashable], n: int, reference: Counter) -> int:
    """`clipped_matches(count(tokens, n), reference)` without counting what the reference lacks.

    About twice as fast, which pays when many texts are held against one. Errors as for `ngrams`.
    Source: Papineni et al. 2002, section 2.1 (Count_clip).

    >>> count_matches(["the", "the", "the"], 1, count(["the", "cat", "the"], 1))
    2
    """
    shared = list(filter(reference.__contains__, _runs(tokens, n)))
    if len(set(shared)) == len(shared):  # none of them twice, so there is nothing to clip
        return len(shared)
    return clipped_matches(Counter(shared), reference)


def maximum_counts(counters: Sequence[Counter]) -> Counter:
    """Each n-gram with the largest of its counts: what clipping allows with several references.

    Raises ValueError if there is no counter.
    Source: Papineni et al. 2002, section 2.1 (Max_Ref_Count).

    >>> one, two = count(["the", "cat"], 1), count(["the", "the"], 1)
    >>> sorted(maximum_counts([one, two]).items())
    [(('cat',), 1), (('the',), 2)]
    """
    if not counters:
        raise ValueError("maximum_counts needs the counts of at least one reference, got none")
    if len(counters) == 1:
        return counters[0]
    largest: Counter = Counter()
    for counter in counters:
        largest |= counter
    return largest


def _runs(tokens: Sequence[Hashable], n: int) -> zip:
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Sequence):
        raise TypeError(
            f"tokens must be a list or tuple, got {type(tokens).__name__}; "
            "cut a text with tokenize(text, name) first"
        )
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n must be an integer of at least 1, got {n!r}")
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}; 1 to 4 are usual")
    return zip(*(tokens[start:] for start in range(n)), strict=False)  # ends with the shortest


def tokenize(text: str, name: str = "13a") -> list[str]:
    """Cut a text into tokens, by one of the named rules of machine translation's tools.

    name: "13a" cuts off punctuation as mteval-v13a does, for languages that put spaces between
    words; "whitespace" (also called "none") cuts at spaces alone; "char" makes each character
    that isn't a space a token; "zh" cuts Chinese characters apart and the rest like 13a.
    All keep upper and lower case. Takes linear time. Equal to sacrebleu's tokenizers.
    Raises TypeError if text is no string, ValueError for another name.
    Source: NIST's mteval-v13a; Post 2018, section 2.2.

    >>> tokenize("It rained 3.5 cm, again.")
    ['It', 'rained', '3.5', 'cm', ',', 'again', '.']
    >>> tokenize("It rained 3.5 cm, again.", "whitespace")
    ['It', 'rained', '3.5', 'cm,', 'again.']
    """
    return tokenizer(name)(require_string(text))


def tokenizer(name: str) -> Callable[[str], list[str]]:
    """The function behind a name of `tokenize`, for loops over many texts.

    Raises ValueError for another name.
    Source: Post 2018, section 2.2.

    >>> tokenizer("char")("a cat")
    ['a', 'c', 'a', 't']
    """
    if not isinstance(name, str) or name not in _TOKENIZERS:
        raise ValueError(f"no tokenizer is called {name!r}; there are: {', '.join(_TOKENIZERS)}")
    return _TOKENIZERS[name]


# ASCII punctuation that 13a always cuts off: all but ' - . and the comma.
_PUNCTUATION = re.compile(r"([!-&(-+/:-@\[-`{-~])")
_POINT_AFTER_NO_DIGIT = re.compile(r"([^0-9])([.,])")
_POINT_BEFORE_NO_DIGIT = re.compile(r"([.,])([^0-9])")
_DASH_AFTER_DIGIT = re.compile(r"([0-9])(-)")


def _cut_punctuation(line: str) -> list[str]:
    """mteval-v13a's rules for languages of the West, in its order: each sees the cuts before."""
    line = _PUNCTUATION.sub(r" \1 ", line)
    if "." in line or "," in line:
        line = _POINT_AFTER_NO_DIGIT.sub(r"\1 \2 ", line)
        line = _POINT_BEFORE_NO_DIGIT.sub(r" \1 \2", line)
    if "-" in line:
        line = _DASH_AFTER_DIGIT.sub(r"\1 \2 ", line)
    return line.split()


def _cut_13a(text: str) -> list[str]:
    line = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    if "&" in line:  # in this order: "&amp;lt;" becomes "<"
        line = line.replace("&quot;", '"').replace("&amp;", "&")
        line = line.replace("&lt;", "<").replace("&gt;", ">")
    return _cut_punctuation(f" {line} ")


# What "zh" cuts apart: ideographs, radicals, strokes, full-width forms, bopomofo, and all from
# U+2001 to U+2A6D, dashes and curly quotes among them. The tool meant U+20000 to U+2A6D6 there
# (rare ideographs, which so stay together); published scores rest on what it does.
_CHINESE = re.compile(
    "([\u2001-\u2a6d\u2e80-\u2fdf\u2ff0-\u303f\u3100-\u312f\u31a0-\u31bf\u31c0-\u31ef"
    "\u3200-\u4db5\u4e00-\u9fbb\uf900-\ufa2d\ufa30-\ufa6a\ufa70-\ufad9"
    "\ufe10-\ufe1f\ufe30-\ufe4f\uff00-\uffef])"
)


def _cut_chinese(text: str) -> list[str]:
    return _cut_punctuation(_CHINESE.sub(r" \1 ", text.strip()))


def _cut_characters(text: str) -> list[str]:
    return list("".join(text.split()))


_TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "13a": _cut_13a,
    "whitespace": str.split,
    "none": str.split,
    "char": _cut_characters,
    "zh": _cut_chinese,
}
