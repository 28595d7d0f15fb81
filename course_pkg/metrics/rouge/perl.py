"""Mode "rouge155": what Lin's Perl script ROUGE-1.5.5 computes differently from his paper.

Papers that report "ROUGE-1.5.5" used this script, so its results can be reproduced here. It differs
in six ways; `score`, `counts` and `tokens` call this module in that mode, and only then:

1. Stemming: step 4 of Porter's rules may remove -ment and -ent after another suffix, and irregular
   forms are not stemmed after they are looked up (`stem`).
2. ROUGE-L is the summary-level one, `rouge_lsum`.
3. ROUGE-W weighs the length of a reference twice, works line by line, and looks for gaps only in
   the reference (`weighted_hits`, `wlcs_union`).
4. ROUGE-SU does not count the last word of a text as a single word (`single_words`).
5. Several references are pooled (-f A), or the best is the one of highest recall (`best_index`).
6. Precision, recall and F have five digits, and F is computed from the rounded two (`five_digits`).

Source: ROUGE-1.5.5.pl. Chapter: metrics/rouge.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from course_pkg.metrics.rouge.lcs import COUNTED, FREE, Tokens, wlcs_table

MODE = "rouge155"
MULTI = "pooled"  # what the script does with several references unless told otherwise
_MOST_CELLS = 30_000_000  # of a table that is kept in memory to read a path from it
_STEP_4 = "ement ance ence able ible ant ism ate iti ous ive ize al er ic ou"


def stem(word: str, irregular: Mapping[str, str]) -> str:
    """The stem of a word: an irregular form is looked up, any other word is reduced by the rules.

    >>> stem("accidental", {}), stem("mice", {"mice": "mouse"})
    ('accid', 'mouse')
    """
    return irregular[word] if word in irregular else _stem(word)


@lru_cache(maxsize=2**16)
def _stem(word: str) -> str:
    return _stemmer().stem(word)


@lru_cache(maxsize=1)
def _stemmer():
    from nltk.stem.porter import PorterStemmer  # imported here because nltk is slow to import

    class PerlStemmer(PorterStemmer):
        """Porter's rules with the script's step 4: -ment and -ent may follow another suffix."""

        def _step4(self, word: str) -> str:
            def drop(word: str, suffix: str) -> str:
                rest = word[: len(word) - len(suffix)]
                return rest if self._measure(rest) > 1 else word

            for suffix in _STEP_4.split():
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

    return PerlStemmer(PorterStemmer.MARTIN_EXTENSIONS)


def wlcs_positions(reference: Tokens, hypothesis: Tokens, weight: float) -> list[tuple[int, int]]:
    """The matches on the path through `lcs.wlcs_table`: pairs (in reference, in hypothesis).

    Raises ValueError for texts whose table would have more than 30 million cells.

    >>> wlcs_positions("abcd", "abxd", weight=2)
    [(0, 0), (1, 1), (3, 3)]
    """
    if len(reference) * len(hypothesis) > _MOST_CELLS:
        raise ValueError(
            f"texts of {len(reference):,} and {len(hypothesis):,} tokens have too large a table "
            f"to keep (at most {_MOST_CELLS:,} cells); put each sentence on its own line"
        )
    _, steps = wlcs_table(reference, hypothesis, weight)
    pairs, i, j = [], len(reference), len(hypothesis)
    while i and j:
        step = steps[i][j]
        i, j = i - (step != "left"), j - (step != "up")
        if step == "match":
            pairs.append((i, j))
    return pairs[::-1]


def wlcs_union(reference: Tokens, hypotheses: Iterable[Tokens], weight: float) -> set[int]:
    """The reference's positions that `wlcs_positions` matches with at least one hypothesis.

    >>> sorted(wlcs_union("abcde", ["abfgh", "achie"], weight=1.2))
    [0, 1, 2, 4]
    """
    return {i for other in hypotheses for i, _ in wlcs_positions(reference, other, weight)}


def weighted_hits(marks: Iterable[Sequence[int]], weight: float) -> float:
    """ROUGE-W's weighted matches: the sum of k ** weight over all runs of k matches.

    marks: of each reference line, as `lcs.clipped_union` returns them.

    >>> weighted_hits([[COUNTED, COUNTED, FREE, COUNTED]], weight=2)
    5
    """
    return sum(run**weight for line in marks for run in _runs(line))


def _runs(marks: Sequence[int]) -> Iterator[int]:
    """The lengths of the runs of matches, found as the script does: in the reference only.

    A clipped match neither counts nor ends a run. So the length of a run continues at the next
    match of the line, and is lost if there is none.
    """
    length = 0
    for position, mark in enumerate(marks, start=1):
        if mark == COUNTED:
            length += 1
            if position == len(marks) or marks[position] == FREE:
                yield length
                length = 0


def single_words(tokens: Sequence) -> Sequence:
    """The tokens that ROUGE-SU counts as single words: all except the last.

    >>> single_words(["police", "killed", "him"])
    ['police', 'killed']
    """
    return tokens[:-1]


def best_index(recalls: Sequence[float], ranks: Sequence[float | None]) -> int:
    """Which reference is the best: the first of highest rank, or of highest recall without a rank.

    >>> best_index([0.5, 0.25], [None, 0.75])
    1
    """
    keys = [recall if rank is None else rank for recall, rank in zip(recalls, ranks, strict=True)]
    return keys.index(max(keys))


def five_digits(number: float) -> float:
    """A number as the script prints it.

    >>> five_digits(1 / 7)
    0.14286
    """
    return float(f"{number:.5f}")
